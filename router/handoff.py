"""Takes one request from the prefill pool to the decode pool, or elsewhere when that fails.

The order is reserve, prefill, adopt (DESIGN 5): decode capacity is promised before a prefill
starts; the decode side verifies before its first step. Every waiting state has a deadline, every
try a new generation, and a word that bears another generation, or comes a second time, is a normal
event that changes nothing (survey, complaints 1 to 7). Whatever fails, the prompt is still known:
the decode replica computes it itself, which is slower and right.
"""

from dataclasses import dataclass
from enum import StrEnum


class HandoffState(StrEnum):
    """Where a hand-off is. The last three are ends.

    LOCAL: the decode replica computes the prompt itself and needs no table.
    """

    RESERVING = "reserving"
    PREFILLING = "prefilling"
    ADOPTING = "adopting"
    DECODING = "decoding"
    LOCAL = "local"
    CANCELLED = "cancelled"
    FAILED = "failed"


_ENDS = (
    HandoffState.DECODING,
    HandoffState.LOCAL,
    HandoffState.CANCELLED,
    HandoffState.FAILED,
)


@dataclass(frozen=True, slots=True)
class HandoffLimits:
    """Longest time in each waiting state, in seconds, and how many decode replicas are asked."""

    reserve_timeout_s: float = 2.0
    prefill_timeout_s: float = 120.0
    adopt_timeout_s: float = 10.0
    max_reservations: int = 3


@dataclass(frozen=True, slots=True)
class Reserve:
    """A command: promise decode capacity to this generation, on a replica not in `avoid`."""

    generation: int
    avoid: frozenset[str]


@dataclass(frozen=True, slots=True)
class Prefill:
    """A command: compute the prompt on a prefill replica and publish its table."""

    generation: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """A command: let the decode replica take the published table of this generation."""

    generation: int
    decode_id: str


@dataclass(frozen=True, slots=True)
class DecodeLocally:
    """A command: let the decode replica compute prompt and answer itself. reason: why."""

    generation: int
    decode_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """A command: end whatever this generation holds on that replica; None: wherever it is."""

    generation: int
    replica_id: str | None


@dataclass(frozen=True, slots=True)
class DropTable:
    """A command: delete the table of this generation; a reader that comes later finds nothing."""

    generation: int


@dataclass(frozen=True, slots=True)
class FailHandoff:
    """A command: nobody can decode; the owner of the request decides what the client is told."""

    reason: str


Command = Reserve | Prefill | Adopt | DecodeLocally | Withdraw | DropTable | FailHandoff
Commands = tuple[Command, ...]


class Handoff:
    """One request between two pools. Times are seconds of one monotonic clock.

    Events name the generation that they speak of. After an end only `on_client_gone` still acts.
    """

    def __init__(self, limits: HandoffLimits, *, first_generation: int = 1) -> None:
        self._limits = limits
        self._state = HandoffState.RESERVING
        self._generation = first_generation - 1
        self._num_reservations = 0
        self._decode_id: str | None = None
        self._prefill_id: str | None = None
        self._is_published = False
        self._avoid: set[str] = set()
        self._deadline_at = 0.0
        self.num_stale = 0

    @property
    def state(self) -> HandoffState:
        """Where it is."""
        return self._state

    @property
    def generation(self) -> int:
        """The only generation whose events count; also the fencing token in the table."""
        return self._generation

    @property
    def deadline_at(self) -> float | None:
        """When `on_tick` has to be called at the latest; None after an end."""
        return None if self._state in _ENDS else self._deadline_at

    def begin(self, now: float) -> Commands:
        """Ask for decode capacity; nothing is computed before it is there."""
        return self._reserve(now)

    def on_reserved(self, generation: int, decode_id: str, now: float) -> Commands:
        """A decode replica promised the capacity."""
        if not self._is_awaited(generation, HandoffState.RESERVING):
            return self._return_stale(generation, decode_id)
        self._decode_id = decode_id
        self._enter(HandoffState.PREFILLING, now, self._limits.prefill_timeout_s)
        return (Prefill(generation),)

    def on_reserve_refused(self, generation: int, decode_id: str | None, now: float) -> Commands:
        """That replica, or with None every one, cannot promise the capacity."""
        if not self._is_awaited(generation, HandoffState.RESERVING):
            return ()
        if decode_id is None:
            return self._fail("no_decode_capacity")
        self._avoid.add(decode_id)
        return self._reserve(now)

    def on_prefill_sent(self, generation: int, prefill_id: str) -> None:
        """The prompt is on its way to that prefill replica."""
        if self._is_awaited(generation, HandoffState.PREFILLING):
            self._prefill_id = prefill_id

    def on_prefilled(self, generation: int, now: float) -> Commands:
        """The first token is sampled and the table published."""
        if not self._is_awaited(generation, HandoffState.PREFILLING):
            # Its publisher could not know; the table must not wait for a reader until it expires.
            return () if generation == self._generation else (DropTable(generation),)
        assert self._decode_id is not None
        self._is_published = True
        self._enter(HandoffState.ADOPTING, now, self._limits.adopt_timeout_s)
        return (Adopt(generation, self._decode_id),)

    def on_prefill_failed(self, generation: int, reason: str) -> Commands:
        """No prefill replica computed the prompt, or its table could not be published."""
        if not self._is_awaited(generation, HandoffState.PREFILLING):
            return ()
        return self._go_local(reason)

    def on_adopted(self, generation: int) -> Commands:
        """The decode replica verified the table and holds the blocks: prefill's may go."""
        if not self._is_awaited(generation, HandoffState.ADOPTING):
            return ()
        self._state = HandoffState.DECODING
        prefill = self._withdraw_prefill()
        return (*prefill, DropTable(generation))

    def on_adopt_failed(self, generation: int, reason: str) -> Commands:
        """Missing, expired, corrupt, stale or of another model: the decode side computes."""
        if not self._is_awaited(generation, HandoffState.ADOPTING):
            return ()
        return self._go_local(reason)

    def on_replica_gone(self, replica_id: str, now: float) -> Commands:
        """A replica's process has ended, or it is given up."""
        if self._state in _ENDS:
            return ()
        if replica_id == self._decode_id:
            return self._decode_gone(replica_id, now)
        if replica_id == self._prefill_id:
            self._prefill_id = None
            if self._state is HandoffState.PREFILLING:
                return self._go_local("prefill_gone")
            # Published blocks outlive their maker in the store; if they did not, adopting says so.
        return ()

    def on_client_gone(self) -> Commands:
        """Nobody reads the answer: nothing may stay behind on either side or in the store."""
        if self._state in (HandoffState.CANCELLED, HandoffState.FAILED):
            return ()
        is_reserving = self._state is HandoffState.RESERVING
        commands: list[Command] = list(self._withdraw_prefill())
        if self._decode_id is not None or is_reserving:
            commands.append(Withdraw(self._generation, self._decode_id))
        if self._is_published and self._state is HandoffState.ADOPTING:
            commands.append(DropTable(self._generation))
        self._state = HandoffState.CANCELLED
        return tuple(commands)

    def on_tick(self, now: float) -> Commands:
        """Time has passed; acts when the deadline of the state is over."""
        if self._state in _ENDS or now < self._deadline_at:
            return ()
        if self._state is HandoffState.RESERVING:
            return (Withdraw(self._generation, None), *self._reserve(now))
        if self._state is HandoffState.PREFILLING:
            return self._go_local("prefill_timeout")
        return self._go_local("adopt_timeout")

    def check(self) -> None:
        """What a state promises is there."""
        if self._state in (HandoffState.PREFILLING, HandoffState.ADOPTING, HandoffState.DECODING):
            assert self._decode_id is not None, self._state
        assert self._num_reservations <= self._limits.max_reservations, self._num_reservations

    def _is_awaited(self, generation: int, state: HandoffState) -> bool:
        if generation == self._generation and self._state is state:
            return True
        self.num_stale += 1
        return False

    def _return_stale(self, generation: int, decode_id: str) -> Commands:
        """Capacity that was promised too late is given back, but not what is in use."""
        is_in_use = generation == self._generation and decode_id == self._decode_id
        return () if is_in_use else (Withdraw(generation, decode_id),)

    def _reserve(self, now: float) -> Commands:
        if self._num_reservations >= self._limits.max_reservations:
            return self._fail("no_decode_capacity")
        self._num_reservations += 1
        self._generation += 1
        self._decode_id = self._prefill_id = None
        self._is_published = False
        self._enter(HandoffState.RESERVING, now, self._limits.reserve_timeout_s)
        return (Reserve(self._generation, frozenset(self._avoid)),)

    def _decode_gone(self, replica_id: str, now: float) -> Commands:
        """The promise died with its replica. Its generation must not be adopted any more."""
        self._avoid.add(replica_id)
        commands: list[Command] = list(self._withdraw_prefill())
        if self._is_published:
            commands.append(DropTable(self._generation))
        return (*commands, *self._reserve(now))

    def _go_local(self, reason: str) -> Commands:
        assert self._decode_id is not None, self._state
        commands: list[Command] = list(self._withdraw_prefill())
        if self._is_published:
            commands.append(DropTable(self._generation))
        self._state = HandoffState.LOCAL
        return (*commands, DecodeLocally(self._generation, self._decode_id, reason))

    def _withdraw_prefill(self) -> Commands:
        if self._prefill_id is None:
            return ()
        prefill_id, self._prefill_id = self._prefill_id, None
        return (Withdraw(self._generation, prefill_id),)

    def _fail(self, reason: str) -> Commands:
        self._state = HandoffState.FAILED
        return (FailHandoff(reason),)

    def _enter(self, state: HandoffState, now: float, timeout_s: float) -> None:
        self._state = state
        self._deadline_at = now + timeout_s
