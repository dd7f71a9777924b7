"""What becomes of a session's blocks when its turn ends: keep, swap or discard.

An agent that calls a tool comes back with the same prompt and some more; blocks that it would find
still on the device are kept, blocks that would be gone by then are copied to where they last, and
blocks that would last nowhere are not worth the copy (Continuum, InferCept: decide by the expected
length of the pause). Idle times and residence times are measured; nothing is assumed.
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum

# Weight of the newest pause in a running mean.
_WEIGHT = 0.3
MAX_SESSIONS = 10_000


class SessionFate(StrEnum):
    """KEEP: leave them to the device's own order. SWAP: copy out. DISCARD: reuse them first."""

    KEEP = "keep"
    SWAP = "swap"
    DISCARD = "discard"


@dataclass(slots=True)
class _Session:
    idle_since: float | None = None
    mean_idle_s: float | None = None


class SessionFates:
    """Pauses of sessions, and what to expect of the next one. Times in monotonic seconds."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._mean_idle_s: float | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def begun(self, session_id: str, now: float) -> None:
        """A turn of the session has begun: its pause, if it was in one, is over."""
        session = self._session(session_id)
        if session.idle_since is None:
            return
        idle_s = now - session.idle_since
        session.idle_since = None
        session.mean_idle_s = _mean(session.mean_idle_s, idle_s)
        self._mean_idle_s = _mean(self._mean_idle_s, idle_s)

    def expected_idle_s(self, session_id: str) -> float | None:
        """The session's own pauses so far, else those of all; None before the first of any."""
        known = self._sessions.get(session_id)
        own = known.mean_idle_s if known is not None else None
        return self._mean_idle_s if own is None else own

    def ended(
        self, session_id: str, now: float, *, device_residence_s: float, outside_residence_s: float
    ) -> SessionFate:
        """A turn has ended: the fate of its blocks.

        device_residence_s: how long a free block can be found on the device before it is reused.
        outside_residence_s: the same of host memory and store.
        """
        self._session(session_id).idle_since = now
        idle_s = self.expected_idle_s(session_id)
        if idle_s is None or idle_s <= device_residence_s:
            return SessionFate.KEEP
        return SessionFate.SWAP if idle_s <= outside_residence_s else SessionFate.DISCARD

    def _session(self, session_id: str) -> _Session:
        session = self._sessions.setdefault(session_id, _Session())
        self._sessions.move_to_end(session_id)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session


def _mean(before: float | None, newest: float) -> float:
    return newest if before is None else before + _WEIGHT * (newest - before)
