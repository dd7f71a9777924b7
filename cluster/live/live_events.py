"""Tells what happened in the cluster from two looks at it: met, lost, preempted, refused.

Whatever has no figure in a status (a hand-off, a failover) is told by who did it, with `tell`.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cluster.streams.stream_codec import EngineReport
from router.replica_status import ReplicaState

MAX_EVENTS = 50


@dataclass(frozen=True, slots=True)
class ReplicaLook:
    """One replica at one moment."""

    replica_id: str
    role: str
    state: ReplicaState
    report: EngineReport


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """number: counts events, from 1. at: Unix seconds. kind: a word for the page's colours."""

    number: int
    at: float
    kind: str
    replica_id: str
    text: str


class EventLog:
    """The last MAX_EVENTS events; clock gives Unix seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._looks: dict[str, ReplicaLook] = {}
        self._events: deque[LiveEvent] = deque(maxlen=MAX_EVENTS)
        self._number = 0

    def tell(self, kind: str, replica_id: str, text: str) -> None:
        """Something happened."""
        self._number += 1
        self._events.append(LiveEvent(self._number, self._clock(), kind, replica_id, text))

    def since(self, number: int) -> list[LiveEvent]:
        """Events after the one with that number, oldest first."""
        return [event for event in self._events if event.number > number]

    @property
    def last_number(self) -> int:
        """The number of the newest event; 0 when nothing has happened yet."""
        return self._number

    def look(self, looks: Iterable[ReplicaLook]) -> None:
        """Compare every replica with what it was at the last look."""
        now = {look.replica_id: look for look in looks}
        for replica_id in self._looks.keys() - now.keys():
            self.tell("lost", replica_id, "left the cluster")
        for replica_id, look in now.items():
            before = self._looks.get(replica_id)
            if before is None:
                self.tell("met", replica_id, _first_words(look.state))
                continue
            if look.state is not before.state:
                kind, text = _state_change(before.state, look.state)
                self.tell(kind, replica_id, text)
            self._compare(before, look)
        self._looks = now

    def _compare(self, before: ReplicaLook, look: ReplicaLook) -> None:
        epoch = look.report.epoch
        if epoch != before.report.epoch:
            # Before the first heartbeat nothing is known of the core, so nothing was restarted.
            if before.report.epoch:
                self.tell("restart", look.replica_id, f"engine core restarted, now number {epoch}")
            return
        old, new = before.report.stats, look.report.stats
        preempted = new.preemptions_total - old.preemptions_total
        if preempted > 0:
            discarded = new.discarded_tokens_total - old.discarded_tokens_total
            text = f"{_count(preempted, 'request')} preempted, {_count(discarded, 'token')} to redo"
            self.tell("preempt", look.replica_id, text)
        refused = new.refused_total - old.refused_total
        if refused > 0:
            self.tell("refuse", look.replica_id, f"{_count(refused, 'request')} refused")


def _first_words(state: ReplicaState) -> str:
    return "in the cluster" if state is ReplicaState.ACTIVE else f"in the cluster, {state.value}"


def _state_change(before: ReplicaState, after: ReplicaState) -> tuple[str, str]:
    match after:
        case ReplicaState.ACTIVE:
            was = "ready" if before is ReplicaState.STARTING else "heard from again"
            return "met", was
        case ReplicaState.SUSPECT:
            return "suspect", "silent, not lost yet"
        case ReplicaState.DRAINING:
            return "drain", "leaves, finishing its requests"
        case ReplicaState.STARTING:
            return "lost", "engine lost, takes no requests"
        case ReplicaState.GONE:
            return "lost", "gone"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
