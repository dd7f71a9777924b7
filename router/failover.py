"""Keeps one request's stream whole while the replicas under it come and go.

A request may have several attempts, one after another; the client sees one list of tokens. Tokens
are the state (DESIGN 3): a new attempt starts from prompt plus accepted tokens, and since the
random number of a position depends on seed, choice and position alone, it goes on with the tokens
that the lost one would have made. At most one attempt's tokens are accepted. An attempt that was
given up is told to end until its end is known or its lease is over; a late word of it is nothing.
"""

from dataclasses import dataclass
from enum import StrEnum

from router.retry_budget import RetryBudget


class Failure(StrEnum):
    """Why an attempt cannot go on; a refusal by full replicas is one too."""

    LOST = "lost"
    HUNG = "hung"
    ENGINE_ERROR = "engine_error"
    NOT_ACCEPTED = "not_accepted"
    REFUSED = "refused"
    BROKEN_ORDER = "broken_order"


@dataclass(frozen=True, slots=True)
class Submit:
    """A command: try the request again.

    emitted_token_ids: accepted tokens of the only choice, known to the new attempt; empty for
    several choices, whose new attempt makes all tokens again, and what is known is passed over.
    avoid: replicas that failed this request; better another one.
    """

    attempt: int
    emitted_token_ids: tuple[int, ...]
    avoid: frozenset[str]


@dataclass(frozen=True, slots=True)
class CancelAttempt:
    """A command: end that attempt there; nobody reads it any more."""

    attempt: int
    replica_id: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A command: the client's stream ends with an error. reason: attempts, budget or deadline."""

    reason: str
    last_failure: Failure


Command = Submit | CancelAttempt | GiveUp


@dataclass(slots=True)
class _Orphan:
    replica_id: str
    lease_until: float
    tell_at: float


@dataclass(frozen=True, slots=True)
class FailoverLimits:
    """deadline_s: after this long without an end no new attempt is made.

    orphan_lease_s: an attempt that was given up has ended by then, told or not, since its replica
    ends what nobody asks for. cancel_interval_s: how often it is told to, until it is known.
    """

    deadline_s: float = 900.0
    orphan_lease_s: float = 10.0
    cancel_interval_s: float = 1.0


class RequestFailover:
    """One request's attempts; starts with attempt 0, which its owner has submitted.

    num_choices: independent continuations; each has its own accepted tokens.
    """

    def __init__(
        self, *, num_choices: int, budget: RetryBudget, limits: FailoverLimits, now: float
    ) -> None:
        self._budget = budget
        self._limits = limits
        self._started_at = now
        self._accepted: list[list[int]] = [[] for _ in range(num_choices)]
        self._running = set(range(num_choices))
        self._attempt = 0
        self._failures = 0
        self._replica_id: str | None = None
        self._avoid: set[str] = set()
        self._orphans: dict[int, _Orphan] = {}
        self._has_ended = False
        self.num_ignored_entries = 0
        budget.on_request()

    @property
    def attempt(self) -> int:
        """The attempt whose tokens are accepted."""
        return self._attempt

    @property
    def has_ended(self) -> bool:
        """Whether the client has, or will get, no more."""
        return self._has_ended

    def accepted(self, choice: int = 0) -> tuple[int, ...]:
        """All that the client got of a choice, or is about to."""
        return tuple(self._accepted[choice])

    def on_sent(self, attempt: int, replica_id: str) -> None:
        """That attempt is on its way to a replica."""
        if attempt == self._attempt:
            self._replica_id = replica_id

    def on_tokens(
        self, attempt: int, choice: int, index: int, token_ids: tuple[int, ...], now: float
    ) -> tuple[tuple[int, ...], tuple[Command, ...]]:
        """New tokens for the client, and commands; index: place of the first in the output.

        Tokens that are known already are passed over; a hole means that some were lost on the
        way, and no later token may then be shown.
        """
        if self._has_ended or attempt != self._attempt or choice not in self._running:
            self.num_ignored_entries += 1
            return (), ()
        known = self._accepted[choice]
        if index > len(known):
            return (), self.on_failure(attempt, Failure.BROKEN_ORDER, now)
        fresh = token_ids[len(known) - index :]
        known.extend(fresh)
        return fresh, ()

    def on_choice_end(self, attempt: int, choice: int) -> bool:
        """A choice has all its tokens; False if that came from an attempt that is not accepted."""
        if self._has_ended or attempt != self._attempt or choice not in self._running:
            self.num_ignored_entries += 1
            return False
        self._running.discard(choice)
        self._has_ended = not self._running
        return True

    def on_failure(self, attempt: int, failure: Failure, now: float) -> tuple[Command, ...]:
        """That attempt cannot go on. Safe to say several times, from several witnesses."""
        if self._has_ended or attempt != self._attempt:
            return ()
        commands = self._orphan_current(now)
        if self._replica_id is not None:
            self._avoid.add(self._replica_id)
            self._replica_id = None
        if now - self._started_at >= self._limits.deadline_s:
            return (*commands, self._give_up("deadline", failure))
        if not self._budget.spend(attempts_made=self._failures + 1, now=now):
            is_broke = self._budget.available(now) < 1.0
            return (*commands, self._give_up("budget" if is_broke else "attempts", failure))
        self._failures += 1
        return (*commands, self._submit())

    def on_migrate(self, now: float) -> tuple[Command, ...]:
        """The replica drains: go on elsewhere; this costs no retry, since nothing failed."""
        if self._has_ended or self._replica_id is None:
            return ()
        commands = self._orphan_current(now)
        self._avoid.add(self._replica_id)
        self._replica_id = None
        return (*commands, self._submit())

    def on_client_gone(self, now: float) -> tuple[Command, ...]:
        """Nobody reads the stream any more."""
        if self._has_ended:
            return ()
        self._has_ended = True
        return self._orphan_current(now)

    def on_attempt_gone(self, attempt: int) -> None:
        """That attempt is known to have ended: nothing of it is left."""
        self._orphans.pop(attempt, None)

    def on_replica_gone(self, replica_id: str) -> None:
        """The replica's process has ended, and all attempts there with it."""
        for attempt, orphan in list(self._orphans.items()):
            if orphan.replica_id == replica_id:
                del self._orphans[attempt]

    def due(self, now: float) -> tuple[CancelAttempt, ...]:
        """Orphans to be told (again) to end; those whose lease is over are forgotten."""
        commands = []
        for attempt, orphan in list(self._orphans.items()):
            if now >= orphan.lease_until:
                del self._orphans[attempt]
            elif now >= orphan.tell_at:
                orphan.tell_at = now + self._limits.cancel_interval_s
                commands.append(CancelAttempt(attempt, orphan.replica_id))
        return tuple(commands)

    @property
    def num_orphans(self) -> int:
        """Attempts that were given up and may still run somewhere."""
        return len(self._orphans)

    def _orphan_current(self, now: float) -> tuple[Command, ...]:
        if self._replica_id is None:
            return ()
        self._orphans[self._attempt] = _Orphan(
            self._replica_id,
            lease_until=now + self._limits.orphan_lease_s,
            tell_at=now + self._limits.cancel_interval_s,
        )
        return (CancelAttempt(self._attempt, self._replica_id),)

    def _submit(self) -> Submit:
        self._attempt += 1
        emitted = tuple(self._accepted[0]) if len(self._accepted) == 1 else ()
        return Submit(self._attempt, emitted, frozenset(self._avoid))

    def _give_up(self, reason: str, failure: Failure) -> GiveUp:
        self._has_ended = True
        return GiveUp(reason, failure)
