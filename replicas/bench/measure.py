"""Runs a workload through an engine and keeps what each step and each request did."""

import time
from dataclasses import dataclass, field

import numpy as np

from replicas.bench.workload import WorkloadRequest
from replicas.engine import Engine
from replicas.engine_commands import ClearCache, Submit
from replicas.engine_stats import EngineStats
from replicas.request import FinishReason, TokenEntry
from replicas.step_output import StepOutput


@dataclass(slots=True)
class RequestTimes:
    """When a request's tokens came, in seconds since the workload began."""

    first_at: float = 0.0
    last_at: float = 0.0
    num_tokens: int = 0

    @property
    def tpot_s(self) -> float:
        """Mean time per output token after the first; 0 for a single token."""
        return (self.last_at - self.first_at) / max(1, self.num_tokens - 1)


@dataclass(slots=True)
class Run:
    """One pass over a workload. `before` and `after` hold the engine's totals around it."""

    before: EngineStats
    after: EngineStats = field(default_factory=EngineStats)
    seconds: float = 0.0
    steps: list[EngineStats] = field(default_factory=list)
    requests: dict[str, RequestTimes] = field(default_factory=dict)

    @property
    def num_output_tokens(self) -> int:
        """Tokens that were streamed."""
        return sum(request.num_tokens for request in self.requests.values())

    @property
    def output_tokens_per_s(self) -> float:
        """Streamed tokens over the whole time."""
        return self.num_output_tokens / self.seconds

    @property
    def computed_prompt_tokens(self) -> int:
        """Prompt tokens that went through the model, recomputed ones included."""
        return self.after.computed_prompt_tokens_total - self.before.computed_prompt_tokens_total

    @property
    def num_preemptions(self) -> int:
        """Preemptions during this pass."""
        return self.after.preemptions_total - self.before.preemptions_total

    def occupancy_while_queued(self) -> float:
        """Mean share of the cap in use over the steps that left requests waiting; 1 if none did."""
        shares = [step.occupancy for step in self.steps if step.num_waiting]
        return float(np.mean(shares)) if shares else 1.0

    def waste(self) -> float:
        """Mean share of held slots without a token (lecture 10: internal fragmentation)."""
        held = sum(step.num_held_slots for step in self.steps)
        filled = sum(step.num_filled_slots for step in self.steps)
        return 1.0 - filled / held if held else 0.0

    def reserved_waste(self, max_model_len: int) -> float:
        """What `waste` would be if every running request held max_model_len slots."""
        held = sum(step.num_running * max_model_len for step in self.steps)
        filled = sum(step.num_filled_slots for step in self.steps)
        return 1.0 - filled / held if held else 0.0

    def planning_share(self) -> float:
        """Seconds of scheduler, allocator and delivery over seconds of steps."""
        overhead = sum(step.plan_s + step.deliver_s for step in self.steps)
        return overhead / max(1e-9, sum(step.run_s for step in self.steps))

    def tpots_s(self) -> list[float]:
        """TPOT of every request with more than one token."""
        return [times.tpot_s for times in self.requests.values() if times.num_tokens > 1]

    def ttfts_s(self) -> list[float]:
        """Time to first token of every request; all of them arrive at 0."""
        return [times.first_at for times in self.requests.values()]


def run_workload(engine: Engine, requests: list[WorkloadRequest], root: bytes) -> Run:
    """All requests at once, cold prefix cache, until the last one ends.

    Raises RuntimeError if a request is refused or ends early: the figures would not be of this
    workload.
    """
    return run_requests(engine, requests, root, max_tokens=0)


def run_requests(
    engine: Engine, requests: list[WorkloadRequest], root: bytes, *, max_tokens: int
) -> Run:
    """As `run_workload`; max_tokens above 0 replaces every request's own number."""
    engine.inbox.put(ClearCache())
    run = Run(before=engine.stats)
    started = time.perf_counter()
    for index, request in enumerate(requests):
        run.requests[f"r{index}"] = RequestTimes()
        engine.inbox.put(Submit(request.to_engine(f"r{index}", root, max_tokens)))
    while (output := engine.step()) is not None or engine.has_work:
        if output is not None:
            _note(run, output, time.perf_counter() - started)
    run.seconds = time.perf_counter() - started
    run.after = engine.stats
    for index, request in enumerate(requests):
        expected = max_tokens or request.output_tokens
        if run.requests[f"r{index}"].num_tokens != expected:
            raise RuntimeError(f"request {index} did not give its {expected} tokens")
    return run


def _note(run: Run, output: StepOutput, now: float) -> None:
    if output.stats.num_rows:
        run.steps.append(output.stats)
    for entry in output.entries:
        _note_entry(run.requests[entry.request_id], entry, now)


def _note_entry(times: RequestTimes, entry: TokenEntry, now: float) -> None:
    if entry.finish_reason is FinishReason.REFUSED:
        reason = entry.refusal.message if entry.refusal else "no reason given"
        raise RuntimeError(f"request {entry.request_id} was refused: {reason}")
    if entry.token_ids:
        if not times.num_tokens:
            times.first_at = now
        times.num_tokens += len(entry.token_ids)
        times.last_at = now
