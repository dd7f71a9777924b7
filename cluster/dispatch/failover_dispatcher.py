"""Streams that outlive their replicas: a request goes on elsewhere, and its client sees a pause.

The decisions are router.failover's; here they are carried out with the feeds of a dispatcher that
knows one attempt at a time. Whatever ends an attempt early (its replica died, hangs, drains, its
engine broke) ends a feed with an error; a new one begins with the tokens that were accepted.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from cluster.dispatch.dispatcher import AttemptFeed, ClusterHealth
from cluster.dispatch.serve_dispatcher import Trouble
from cluster.errors import DispatchError, NoReplica, ReplicaLost, RequestRefused
from cluster.streams.token_outbox import drop_tokens
from replicas.request import EngineRequest, FinishReason, TokenEntry
from router.config import RouterConfig
from router.failover import FailoverLimits, Failure, GiveUp, RequestFailover, Submit
from router.retry_budget import RetryBudget, RetryLimits

log = logging.getLogger(__name__)

# Between two looks for a replica while there is none: for a stream, and for a new request.
_SEARCH_INTERVAL_S = 0.2
_FIRST_SEARCH_INTERVAL_S = 0.05
# How often a new request may be offered in vain while it waits.
_MOST_FIRST_TRIES = 3


class MovedOn(ReplicaLost):
    """The attempt was given up although its replica lives: it hangs, or it drains."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(f"The replica is {trouble}; the request goes on elsewhere.")
        self.trouble = trouble


class AttemptDispatcher(Protocol):
    """Carries single attempts (cluster.dispatch.serve_dispatcher), or pairs of them that share a
    request (cluster.handoff.pair_dispatcher)."""

    async def open(
        self, request: EngineRequest, *, avoid: frozenset[str] = frozenset()
    ) -> AttemptFeed:
        """As Dispatcher.open; replicas in `avoid` are taken only when there is no other."""
        ...

    def health(self) -> ClusterHealth:
        """What the last statuses and heartbeats say."""
        ...

    def trouble(self, feed: AttemptFeed) -> Trouble | None:
        """Why an open attempt had better go on elsewhere, if another replica could take it."""
        ...

    async def close(self) -> None:
        """Cancel what is open."""
        ...


@dataclass(frozen=True, slots=True)
class FailoverSettings:
    """limits and budget: of router. search_s: longest pause of a stream while no replica can take
    it. first_search_s: longest wait of a new request while none can and one is starting.
    look_interval_s: how often open streams are looked at for hung and draining replicas.
    attempt_numbers: most attempts that are made below for one of ours.
    """

    limits: FailoverLimits
    budget: RetryLimits
    search_s: float
    first_search_s: float
    look_interval_s: float
    attempt_numbers: int

    @classmethod
    def of(cls, config: RouterConfig) -> "FailoverSettings":
        """As the gateway's settings say."""
        return cls(
            limits=FailoverLimits(deadline_s=config.failover_deadline_s),
            budget=RetryLimits(
                max_attempts=config.max_attempts,
                retry_ratio=config.retry_ratio,
                burst_retries=config.retry_burst,
            ),
            search_s=config.failover_search_s,
            first_search_s=config.first_search_s,
            look_interval_s=config.heartbeat_interval_s,
            # A pair makes as many tries on the prefill side as on the decode side. A new request is
            # offered again after each time that nobody took it.
            attempt_numbers=2 * config.max_tries * (1 + _MOST_FIRST_TRIES),
        )


OnFailover = Callable[[str, str, int], None]


class FailoverDispatcher:
    """A Dispatcher whose streams survive their replicas, as long as one is left.

    max_model_len: longest context in tokens, at which a request ends by itself. on_failover: told,
    soon after, which replica was left, why, and by how many streams.
    """

    def __init__(
        self,
        attempts: AttemptDispatcher,
        *,
        settings: FailoverSettings,
        clock: Callable[[], float],
        max_model_len: Callable[[], int],
        on_failover: OnFailover = lambda _replica_id, _reason, _num_streams: None,
    ) -> None:
        self.attempts = attempts
        self.settings = settings
        self.clock = clock
        self.max_model_len = max_model_len
        self.counts: Counter[str] = Counter()
        self._on_failover = on_failover
        self._untold: Counter[tuple[str, str]] = Counter()
        self._budget = RetryBudget(settings.budget, now=clock())
        self._open: set[FailoverFeed] = set()
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for replicas that hang or drain."""
        self._watch = asyncio.create_task(self._look_on(), name="failover")

    async def open(self, request: EngineRequest) -> "FailoverFeed":
        """As Dispatcher.open. The first attempt's errors are the caller's: nothing was shown.

        Only that no replica can take it is waited out for a while if one is about to: in a rolling
        update the one that goes may be known to have gone before the one that comes is reached.
        """
        feed = await self._open_first(request)
        failover = RequestFailover(
            num_choices=request.num_choices,
            budget=self._budget,
            limits=self.settings.limits,
            now=self.clock(),
        )
        failover.on_sent(0, feed.replica_id)
        opened = FailoverFeed(self, request, feed, failover)
        self._open.add(opened)
        return opened

    def health(self) -> ClusterHealth:
        """What the last statuses and heartbeats say."""
        return self.attempts.health()

    @property
    def num_open(self) -> int:
        """Streams that have a reader."""
        return len(self._open)

    async def close(self) -> None:
        """Stop looking; then as the dispatcher of attempts."""
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
        await self.attempts.close()

    def forget(self, feed: "FailoverFeed") -> None:
        """Its reader has left, or it has ended."""
        self._open.discard(feed)

    def note(self, replica_id: str, reason: str) -> None:
        """A stream moves on from that replica."""
        self.counts[reason] += 1
        self._untold[replica_id, reason] += 1

    async def _open_first(self, request: EngineRequest) -> AttemptFeed:
        deadline = self.clock() + self.settings.first_search_s
        num_asked = 0
        while True:
            try:
                return await self.attempts.open(request)
            except NoReplica as error:
                num_asked += error.was_asked
                if (
                    not error.may_wait
                    or num_asked > _MOST_FIRST_TRIES
                    or not self.health().num_starting
                    or self.clock() >= deadline
                ):
                    raise
            # What was told a replica that did not take it must not meet what it is told next.
            numbers = self.settings.attempt_numbers // (1 + _MOST_FIRST_TRIES)
            request = replace(request, attempt=num_asked * numbers)
            await asyncio.sleep(_FIRST_SEARCH_INTERVAL_S)

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(self.settings.look_interval_s)
            for opened in tuple(self._open):
                opened.look()
            self._tell()

    def _tell(self) -> None:
        """One word for all streams that left a replica together."""
        for (replica_id, reason), num_streams in self._untold.items():
            self._on_failover(replica_id, reason, num_streams)
        self._untold.clear()


class FailoverFeed:
    """The TokenFeed of one request over all its attempts."""

    def __init__(
        self,
        owner: FailoverDispatcher,
        request: EngineRequest,
        feed: AttemptFeed,
        failover: RequestFailover,
    ) -> None:
        self._owner = owner
        self._request = request
        self._feed: AttemptFeed | None = feed
        self._failover = failover
        self._finishing: set[int] = set()
        self._ended: set[int] = set()
        self._is_closed = False

    @property
    def replica_id(self) -> str:
        """Where the current attempt runs; empty between two attempts."""
        return self._feed.replica_id if self._feed is not None else ""

    def __aiter__(self) -> AsyncIterator[TokenEntry]:
        return self._entries()

    def finish_choice(self, choice: int) -> None:
        """End one choice early because the gateway found a stop string in its text."""
        self._finishing.add(choice)
        if self._feed is not None:
            self._feed.finish_choice(choice)

    async def close(self) -> None:
        """Leave: whatever still runs is cancelled. Safe to call twice and after the end."""
        self._is_closed = True
        self._owner.forget(self)
        self._failover.on_client_gone(self._owner.clock())
        if self._feed is not None:
            await self._feed.close()

    def look(self) -> None:
        """Move on from a replica that hangs or drains while another could take the request."""
        feed = self._feed
        if feed is None or feed.has_ended:
            return
        trouble = self._owner.attempts.trouble(feed)
        if trouble is not None:
            feed.fail(MovedOn(trouble))

    async def _entries(self) -> AsyncIterator[TokenEntry]:
        while not self._is_closed and self._feed is not None:
            try:
                async for entry in self._feed:
                    if (shown := self._accept(entry)) is not None:
                        yield shown
            except ReplicaLost as error:
                submit = await self._leave(error)
                if (end := self._own_end()) is not None:
                    yield end
                    return
                self._feed = await self._reopen(submit, error)
                continue
            return

    def _accept(self, entry: TokenEntry) -> TokenEntry | None:
        """What of an entry is new to the client; raises ReplicaLost if tokens before it are lost.

        One that is left without tokens shows that the request lives: a beam search has nothing else
        to say until its end, and an attempt that makes known tokens again nothing new.
        """
        attempt, now = self._failover.attempt, self._owner.clock()
        is_running = entry.choice not in self._ended
        fresh: tuple[int, ...] = ()
        if entry.token_ids:
            fresh, commands = self._failover.on_tokens(
                attempt, entry.choice, entry.index, entry.token_ids, now
            )
            if commands:
                raise ReplicaLost("Tokens were lost on the way.")
        if not is_running:
            return None
        if entry.finish_reason is not None:
            self._ended.add(entry.choice)
            self._failover.on_choice_end(attempt, entry.choice)
        return drop_tokens(entry, len(entry.token_ids) - len(fresh))

    async def _leave(self, error: ReplicaLost) -> Submit:
        """Give the current attempt up; raises the error again if there must not be another."""
        feed, self._feed = self._feed, None
        assert feed is not None
        await feed.close()
        now, attempt = self._owner.clock(), self._failover.attempt
        if isinstance(error, MovedOn) and error.trouble == "draining":
            reason = "draining"
            commands = self._failover.on_migrate(now)
        else:
            failure = Failure.HUNG if isinstance(error, MovedOn) else Failure.LOST
            reason = failure.value
            commands = self._failover.on_failure(attempt, failure, now)
        for command in commands:
            match command:
                case Submit():
                    self._owner.note(feed.replica_id, reason)
                    log.warning(
                        "request moves on request=%s replica=%s reason=%s emitted=%d",
                        self._request.request_id,
                        feed.replica_id,
                        reason,
                        len(command.emitted_token_ids),
                    )
                    return command
                case GiveUp():
                    self._owner.counts[f"given_up_{command.reason}"] += 1
        raise error

    def _own_end(self) -> TokenEntry | None:
        """The end of a request that had all its tokens when its replica was lost, or stop string.

        Only for a single choice: those of several come again, with their ends.
        """
        if self._request.num_choices != 1:
            return None
        num_emitted = len(self._failover.accepted())
        num_known = len(self._request.prompt_token_ids) + num_emitted
        if 0 in self._finishing:
            reason = FinishReason.STOP_STRING
        elif (
            num_emitted >= self._request.sampling.max_tokens
            or num_known >= self._owner.max_model_len()
        ):
            reason = FinishReason.LENGTH
        else:
            return None
        self._failover.on_choice_end(self._failover.attempt, 0)
        return TokenEntry(
            request_id=self._request.request_id,
            attempt=self._failover.attempt,
            choice=0,
            index=num_emitted,
            finish_reason=reason,
        )

    async def _reopen(self, submit: Submit, lost: ReplicaLost) -> AttemptFeed:
        """Another attempt, as soon as a replica can take it; raises `lost` when none can in time.

        Between two replicas there may be none for a moment: the only one restarts its core.
        """
        request = replace(
            self._request,
            attempt=submit.attempt * self._owner.settings.attempt_numbers,
            emitted_token_ids=submit.emitted_token_ids,
            queue_timeout_s=None,
        )
        deadline = self._owner.clock() + self._owner.settings.search_s
        while True:
            try:
                feed = await self._owner.attempts.open(request, avoid=submit.avoid)
                break
            except (NoReplica, RequestRefused) as error:
                if self._owner.clock() >= deadline or not _may_pass(error):
                    raise lost from error
                await asyncio.sleep(_SEARCH_INTERVAL_S)
        self._failover.on_sent(submit.attempt, feed.replica_id)
        for choice in self._finishing | self._ended:
            feed.finish_choice(choice)
        return feed


def _may_pass(error: DispatchError) -> bool:
    """Whether the same request could be taken a moment later."""
    return not isinstance(error, RequestRefused) or error.refusal.retry_after_s is not None
