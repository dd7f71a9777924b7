"""Whether a step takes longer when the event loop of the engine's parent process is fully busy.

The core is a process of its own for exactly this (DESIGN 3). The loop here spins without a pause.
"""

import asyncio
import threading
import time
from dataclasses import dataclass

import numpy as np

from replicas.bench.workload import WorkloadRequest
from replicas.config import EngineConfig
from replicas.engine_client import ProcessEngine
from replicas.request import FinishReason
from replicas.step_output import StepOutput

NUM_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of all full decode steps of one kind."""

    quiet_s: list[float]
    busy_s: list[float]

    def table(self) -> str:
        """Percentiles of both and their ratio, as a Markdown table."""
        lines = ["| step ms | p50 | p90 | p99 |", "|---|---|---|---|"]
        percentiles = [50, 90, 99]
        quiet = np.percentile(self.quiet_s, percentiles)
        busy = np.percentile(self.busy_s, percentiles)
        for name, row in (("quiet", 1e3 * quiet), ("busy loop", 1e3 * busy)):
            lines.append(f"| {name} | " + " | ".join(f"{value:.1f}" for value in row) + " |")
        lines.append("| ratio | " + " | ".join(f"{value:.2f}" for value in busy / quiet) + " |")
        return "\n".join(lines)


class _Collector:
    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._num_left = 0
        self.steps: list[float] = []
        self.done = threading.Event()

    def expect(self, num_requests: int) -> None:
        self._num_left = num_requests
        self.steps = []
        self.done.clear()

    def on_output(self, output: StepOutput) -> None:
        stats = output.stats
        if stats.num_rows == self._num_rows and not stats.num_prefill_tokens:
            self.steps.append(stats.run_s)
        self._num_left -= sum(entry.finish_reason is not None for entry in output.entries)
        assert all(entry.finish_reason is not FinishReason.REFUSED for entry in output.entries)
        if self._num_left <= 0:
            self.done.set()


def measure_busy_parent(
    config: EngineConfig, requests: list[WorkloadRequest], root: bytes
) -> StepTimes:
    """Run the requests several times, beside a sleeping and beside a spinning loop in turn."""
    collector = _Collector(num_rows=len(requests))
    engine = ProcessEngine(config, on_output=collector.on_output, on_exit=print)
    loop = _SpinningLoop()
    times = StepTimes([], [])
    for round_number in range(2 * NUM_ROUNDS + 1):
        is_busy = round_number % 2 == 0
        loop.spins = is_busy
        collector.expect(len(requests))
        for index, request in enumerate(requests):
            engine.submit(request.to_engine(f"{round_number}-{index}", root, max_tokens=64))
        collector.done.wait()
        if round_number:
            (times.busy_s if is_busy else times.quiet_s).extend(collector.steps)
    loop.close()
    engine.close()
    return times


class _SpinningLoop:
    """An event loop in a thread, whose one task never sleeps while `spins` is set."""

    def __init__(self) -> None:
        self.spins = False
        self._ends = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._ends = True
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._spin())

    async def _spin(self) -> None:
        while not self._ends:
            await asyncio.sleep(0 if self.spins else 0.05)
            deadline = time.perf_counter() + 0.001
            while self.spins and time.perf_counter() < deadline:
                pass
