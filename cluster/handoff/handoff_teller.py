"""Tells the page and the metrics what came of hand-offs: each is counted, one line says many."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from cluster.handoff.pair_feed import HandoffResult
from cluster.metrics.figures import Figures

TELL_INTERVAL_S = 1.0

# Of an event: its kind, the replica, and what happened.
Tell = Callable[[str, str, str], None]


@dataclass(slots=True)
class _Batch:
    """Hand-offs to one replica that have not been told yet."""

    num_adopted: int = 0
    num_bytes: int = 0
    transports: set[str] = field(default_factory=set)
    reasons: Counter[str] = field(default_factory=Counter)


class HandoffTeller:
    """One event a second and replica at most, since a busy pool hands over dozens of requests."""

    def __init__(self, figures: Figures, tell: Tell) -> None:
        self._exposed = figures.histogram("pagoda:handoff_exposed_seconds")
        self._tell = tell
        self._untold: dict[str, _Batch] = {}

    def note(self, result: HandoffResult) -> None:
        """A hand-off has ended well, or its prompt is computed by the decode side."""
        if result.exposed_s is not None:
            self._exposed.observe(result.exposed_s)
        if not self._untold:
            asyncio.get_running_loop().call_later(TELL_INTERVAL_S, self._tell_all)
        batch = self._untold.setdefault(result.replica_id, _Batch())
        if result.outcome != "adopted":
            batch.reasons[result.outcome] += 1
            return
        batch.num_adopted += 1
        batch.num_bytes += result.num_bytes
        batch.transports |= {result.transport} - {""}

    def _tell_all(self) -> None:
        untold, self._untold = self._untold, {}
        for replica_id, batch in untold.items():
            if batch.num_adopted:
                ways = " and ".join(sorted(batch.transports)) or "nothing new"
                text = f"{_count(batch.num_adopted)} taken over, {batch.num_bytes / 1e6:.1f} MB"
                self._tell("handoff", replica_id, f"{text} by {ways}")
            for reason, number in batch.reasons.items():
                text = f"{_count(number)} not handed over: {reason.replace('_', ' ')}"
                self._tell("handoff", replica_id, text)


def _count(number: int) -> str:
    return f"{number:,} request{'' if number == 1 else 's'}"
