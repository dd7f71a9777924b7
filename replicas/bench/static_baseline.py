"""The padded static batch of lecture 11, 11.1, on the same engine: what it costs not to re-form it.

A static batch runs until its longest member ends, and the rows of members that ended are computed
all the same. So every request of a batch is asked for as many tokens as the longest one, and only
the tokens that were wanted count.
"""

from dataclasses import dataclass

from replicas.bench.measure import run_requests
from replicas.bench.workload import WorkloadRequest
from replicas.engine import Engine


@dataclass(frozen=True, slots=True)
class StaticRun:
    """Batch after batch of `batch_size` requests, in file order."""

    seconds: float
    num_steps: int
    num_useful_tokens: int

    @property
    def output_tokens_per_s(self) -> float:
        """Wanted tokens over the whole time."""
        return self.num_useful_tokens / self.seconds


def static_steps(requests: list[WorkloadRequest], batch_size: int) -> int:
    """Decode steps of the static schedule: the longest output of every batch, summed."""
    return sum(
        max(request.output_tokens for request in requests[start : start + batch_size])
        for start in range(0, len(requests), batch_size)
    )


def continuous_steps(requests: list[WorkloadRequest], batch_size: int) -> int:
    """Steps of an ideal continuous schedule: a slot that is left is filled in the next step."""
    busy_until = [0] * batch_size
    for request in requests:
        slot = min(range(batch_size), key=busy_until.__getitem__)
        busy_until[slot] += request.output_tokens
    return max(busy_until)


def run_static(
    engine: Engine, requests: list[WorkloadRequest], root: bytes, *, batch_size: int
) -> StaticRun:
    """Run the schedule; the engine's cap on running requests must be batch_size or more."""
    seconds = 0.0
    num_steps = 0
    for start in range(0, len(requests), batch_size):
        members = requests[start : start + batch_size]
        longest = max(request.output_tokens for request in members)
        run = run_requests(engine, members, root, max_tokens=longest)
        seconds += run.seconds
        num_steps += len(run.steps)
    return StaticRun(seconds, num_steps, sum(request.output_tokens for request in requests))
