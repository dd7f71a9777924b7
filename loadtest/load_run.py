"""Runs a load test over its worker processes and gathers what they saw."""

import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from loadtest.call_record import CallRecord
from loadtest.config import LoadConfig
from loadtest.progress import Snapshot, merged
from loadtest.server_facts import ServerFacts
from loadtest.worker import Share, ShareResult, work

START_DELAY_S = 0.2
POLL_S = 0.25

Watcher = Callable[[float, Snapshot], None]


class WorkerLost(Exception):
    """A worker process ended without a result."""


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """All records in order of sending; `cpu_ratio` is that of the busiest process.

    start_at: when the run was to begin, or its first request was sent, whichever came first.
    """

    records: list[CallRecord]
    start_at: float
    cpu_ratio: float
    was_stopped: bool


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    connection: Connection
    snapshot: Snapshot
    result: ShareResult | None = None


def run_load(config: LoadConfig, facts: ServerFacts, watch: Watcher) -> LoadOutcome:
    """Run `config` to its end; `watch(elapsed_s, snapshot)` is called a few times a second.

    An interrupt (Ctrl-C) ends the run early with what there is. Raises WorkerLost, or what a
    worker raised.
    """
    workers = _start_workers(config, facts)
    try:
        for worker in workers:
            _expect_ready(worker)
        start_at = time.monotonic() + START_DELAY_S
        for worker in workers:
            worker.connection.send(start_at)
        was_stopped = _follow(workers, start_at, watch)
    finally:
        for worker in workers:
            if worker.result is None:
                worker.process.terminate()
            worker.process.join(timeout=10)
    results = [worker.result for worker in workers if worker.result is not None]
    return outcome_of(results, start_at, was_stopped=was_stopped)


def outcome_of(
    results: Sequence[ShareResult], start_at: float, *, was_stopped: bool
) -> LoadOutcome:
    """What the processes of a run brought back that was to begin at `start_at`."""
    records = sorted((r for result in results for r in result.records), key=lambda r: r.sent_at)
    # Timers may fire a fraction of a millisecond early, and that request counts too.
    began_at = min(start_at, records[0].sent_at) if records else start_at
    return LoadOutcome(records, began_at, max(r.cpu_ratio for r in results), was_stopped)


def _start_workers(config: LoadConfig, facts: ServerFacts) -> list[_Worker]:
    # Spawned, not forked: a copy of this process's threads and locks is no clean start.
    spawn = multiprocessing.get_context("spawn")
    workers = []
    for index in range(config.num_processes):
        ours, theirs = spawn.Pipe()
        share = Share(index, config.num_processes)
        process = spawn.Process(target=work, args=(config, facts, share, theirs), daemon=True)
        process.start()
        theirs.close()
        workers.append(_Worker(process, ours, Snapshot()))
    return workers


def _expect_ready(worker: _Worker) -> None:
    message = _receive(worker)
    if isinstance(message, Exception):
        raise message
    if message != "ready":
        raise WorkerLost(f"expected ready, got {message!r}")


def _follow(workers: list[_Worker], start_at: float, watch: Watcher) -> bool:
    was_stopped = False
    # A shell makes its background jobs deaf to it, and so would nobody but kill -9 end the run.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    while any(worker.result is None for worker in workers):
        try:
            _take_messages(workers)
            watch(time.monotonic() - start_at, merged([w.snapshot for w in workers]))
            for worker in workers:
                # Latencies are shown once; the counts stay until the next snapshot.
                worker.snapshot = _without_latencies(worker.snapshot)
        except KeyboardInterrupt:
            # The workers got the same signal: they stop sending and hand over what they have.
            was_stopped = True
    return was_stopped


def _take_messages(workers: list[_Worker]) -> None:
    open_workers = [worker for worker in workers if worker.result is None]
    spoken = wait([worker.connection for worker in open_workers], timeout=POLL_S)
    for worker in (worker for worker in open_workers if worker.connection in spoken):
        message = _receive(worker)
        if isinstance(message, Exception):
            raise message
        if isinstance(message, ShareResult):
            worker.result = message
        elif isinstance(message, Snapshot):
            worker.snapshot = message


def _receive(worker: _Worker) -> object:
    try:
        return worker.connection.recv()
    except EOFError as error:
        worker.process.join(timeout=5)
        raise WorkerLost(f"a worker ended with exit code {worker.process.exitcode}") from error


def _without_latencies(snapshot: Snapshot) -> Snapshot:
    return Snapshot(
        snapshot.sent,
        snapshot.running,
        snapshot.finished,
        snapshot.failed,
        snapshot.cancelled,
        snapshot.output_tokens,
    )
