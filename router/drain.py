"""Takes a replica out of service: no new work, a grace time, then its requests go on elsewhere.

Requests that end in the grace time cost nothing to wait for; the others are migrated, a few at a
time, since all at once would be a burst of prefills on the replicas that are left. The whole of it
has a deadline, because whoever stops a replica kills it in the end (survey, complaint 25).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class DrainState(StrEnum):
    """SERVING takes work; FINISHING waits; MIGRATING moves requests away; EXITED is the end."""

    SERVING = "serving"
    FINISHING = "finishing"
    MIGRATING = "migrating"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class DrainLimits:
    """grace_s: how long requests may simply go on. deadline_s: when the replica exits at the
    latest, counted from the start. max_parallel_migrations: requests on the move at once.
    retry_s: how long a request that could not be moved waits for its next try.
    """

    grace_s: float = 5.0
    deadline_s: float = 30.0
    max_parallel_migrations: int = 8
    retry_s: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.grace_s <= self.deadline_s:
            raise ValueError(f"grace_s={self.grace_s}: expected 0 to deadline_s={self.deadline_s}")
        if self.max_parallel_migrations < 1:
            raise ValueError(
                f"max_parallel_migrations={self.max_parallel_migrations}: expected at least 1"
            )
        if not self.retry_s >= 0.0:
            raise ValueError(f"retry_s={self.retry_s}: expected 0 or more seconds")


@dataclass(frozen=True, slots=True)
class RefuseWork:
    """A command: the replica takes no more requests."""


@dataclass(frozen=True, slots=True)
class MigrateRequest:
    """A command: continue that request on another replica."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Exit:
    """A command: end the replica. num_open: requests that are cut; 0 unless the deadline passed."""

    num_open: int


Command = RefuseWork | MigrateRequest | Exit


class ReplicaDrain:
    """One replica's way out. Times are seconds of one monotonic clock."""

    def __init__(self, limits: DrainLimits) -> None:
        self._limits = limits
        self._state = DrainState.SERVING
        self._open: dict[str, float] = {}
        self._moving: set[str] = set()
        self._began_at = 0.0

    @property
    def state(self) -> DrainState:
        """Where it is."""
        return self._state

    @property
    def num_open(self) -> int:
        """Requests that are still on the replica."""
        return len(self._open)

    def begin(self, open_requests: Iterable[str], now: float) -> tuple[Command, ...]:
        """Stop taking work. Safe to call again: the first time counts."""
        if self._state is not DrainState.SERVING:
            return ()
        self._state = DrainState.FINISHING
        self._began_at = now
        self._open = dict.fromkeys(open_requests, now)
        return (RefuseWork(), *self.on_tick(now))

    def on_request_opened(self, request_id: str, now: float) -> None:
        """A request that was on its way when the drain began has arrived after all."""
        if self._state in (DrainState.FINISHING, DrainState.MIGRATING):
            self._open.setdefault(request_id, now)

    def on_request_ended(self, request_id: str, now: float) -> tuple[Command, ...]:
        """It ended here, or goes on elsewhere; unknown ones are fine."""
        self._open.pop(request_id, None)
        self._moving.discard(request_id)
        return self.on_tick(now)

    def on_migration_failed(self, request_id: str, now: float) -> tuple[Command, ...]:
        """No replica could take it now; it goes on here and is tried again."""
        if request_id in self._moving:
            self._moving.discard(request_id)
            self._open[request_id] = now + self._limits.retry_s
        return self.on_tick(now)

    def on_tick(self, now: float) -> tuple[Command, ...]:
        """Time has passed, or something has changed."""
        if self._state in (DrainState.SERVING, DrainState.EXITED):
            return ()
        if not self._open or now - self._began_at >= self._limits.deadline_s:
            self._state = DrainState.EXITED
            return (Exit(len(self._open)),)
        if now - self._began_at < self._limits.grace_s:
            return ()
        self._state = DrainState.MIGRATING
        return tuple(self._next_migrations(now))

    def check(self) -> None:
        """Only open requests move, and not more than may."""
        assert self._moving <= self._open.keys(), (self._moving, self._open)
        assert len(self._moving) <= self._limits.max_parallel_migrations, self._moving

    def _next_migrations(self, now: float) -> Iterable[Command]:
        # Those that wait longest for a try first; a stable order among the others.
        for request_id, due_at in sorted(self._open.items(), key=lambda item: item[1]):
            if len(self._moving) >= self._limits.max_parallel_migrations or due_at > now:
                return
            if request_id not in self._moving:
                self._moving.add(request_id)
                yield MigrateRequest(request_id)
