"""A Dispatcher that answers from a script, so that the gateway can be run without a cluster.

It keeps the contract of the real one (order, indices, admission, refusals, losses, early ends),
takes as long as the script says, and counts what is open, so that a forgotten feed shows.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from cluster.dispatch.dispatcher import ClusterHealth
from cluster.errors import DispatchError, ReplicaLost
from replicas.request import EngineRequest, FinishReason, Refusal, TokenEntry, TokenLogprob


@dataclass(frozen=True, slots=True)
class Script:
    """What happens to one request. Times in seconds.

    token_ids: the output of each choice; a request with more choices starts over. A choice ends
        with finish_reason, or as LENGTH where it reaches the request's max_tokens first.
    stop_token_id: the end token when finish_reason is STOP.
    tokens_per_entry: tokens that one entry brings. step_s: time between two steps.
    admission_s: how long open takes. admission_error: what open raises then, if anything.
    expiry: the refusal that an admitted request gets instead of tokens.
    lost_after_tokens: the replica is lost when each choice has this many tokens.
    silent_after_tokens: nothing comes any more when each choice has this many tokens.
    logprobs: of each choice's tokens, for a request that asks; the likeliest ones have the ids
        from the token's own on, each twice as far from 0 as the one before.
    """

    token_ids: tuple[tuple[int, ...], ...] = ((0,),)
    finish_reason: FinishReason = FinishReason.STOP
    stop_token_id: int | None = None
    tokens_per_entry: int = 1
    num_cached_tokens: int = 0
    step_s: float = 0.0
    admission_s: float = 0.0
    admission_error: DispatchError | None = None
    expiry: Refusal | None = None
    lost_after_tokens: int | None = None
    silent_after_tokens: int | None = None
    logprobs: tuple[float, ...] = (-1.0,)


class ScriptedFeed:
    """The feed of one scripted request; one step gives one entry to each running choice."""

    def __init__(
        self, request: EngineRequest, script: Script, *, on_close: Callable[[], None]
    ) -> None:
        self._request = request
        self._script = script
        self._on_close = on_close
        self._is_closed = False
        self.finished_choices: list[int] = []

    def __aiter__(self) -> AsyncIterator[TokenEntry]:
        """Entries of each choice in order, the choices interleaved."""
        return self._entries()

    def finish_choice(self, choice: int) -> None:
        """No more entries of this choice."""
        self.finished_choices.append(choice)

    async def close(self) -> None:
        """Leave; safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            self._on_close()

    async def _entries(self) -> AsyncIterator[TokenEntry]:
        request = self._request
        for choice in range(request.num_choices):
            yield TokenEntry(request.request_id, request.attempt, choice, index=0)
        if self._script.expiry is not None:
            yield TokenEntry(
                request.request_id,
                request.attempt,
                choice=0,
                index=0,
                finish_reason=FinishReason.REFUSED,
                refusal=self._script.expiry,
            )
            return
        running = set(range(request.num_choices))
        index = 0
        while running and not self._is_closed:
            await asyncio.sleep(self._script.step_s)
            await self._fail_on_cue(index)
            for choice in sorted(running - set(self.finished_choices)):
                entry = self._entry(choice, index)
                if entry.finish_reason is not None:
                    running.discard(choice)
                yield entry
            running -= set(self.finished_choices)
            index += self._script.tokens_per_entry

    async def _fail_on_cue(self, num_tokens: int) -> None:
        script = self._script
        if script.lost_after_tokens is not None and num_tokens >= script.lost_after_tokens:
            raise ReplicaLost("The replica was lost while it worked on this request.")
        if script.silent_after_tokens is not None and num_tokens >= script.silent_after_tokens:
            await asyncio.Event().wait()

    def _entry(self, choice: int, index: int) -> TokenEntry:
        script, max_tokens = self._script, self._request.sampling.max_tokens
        planned = script.token_ids[choice % len(script.token_ids)]
        token_ids = planned[:max_tokens][index : index + script.tokens_per_entry]
        reason = stop_token_id = None
        if index + script.tokens_per_entry >= min(len(planned), max_tokens):
            # An end token takes a place among the output tokens, so a full choice has none.
            reason = FinishReason.LENGTH if len(planned) >= max_tokens else script.finish_reason
            stop_token_id = script.stop_token_id if reason is FinishReason.STOP else None
        return TokenEntry(
            self._request.request_id,
            self._request.attempt,
            choice,
            index,
            token_ids,
            finish_reason=reason,
            stop_token_id=stop_token_id,
            num_cached_tokens=script.num_cached_tokens if index == 0 else 0,
            logprobs=self._logprobs(choice, token_ids, stop_token_id),
        )

    def _logprobs(
        self, choice: int, token_ids: tuple[int, ...], stop_token_id: int | None
    ) -> tuple[TokenLogprob, ...]:
        asked = self._request.sampling.num_logprobs
        if asked is None:
            return ()
        own = self._script.logprobs[choice % len(self._script.logprobs)]
        sampled = token_ids if stop_token_id is None else (*token_ids, stop_token_id)
        return tuple(
            TokenLogprob(own, tuple((token_id + i, own * 2 ** (i - asked)) for i in range(asked)))
            for token_id in sampled
        )


class ScriptedDispatcher:
    """Gives every request the script that `script_for` chooses.

    requests: what was submitted, in order. feeds: the feeds of those that were admitted.
    num_open: feeds and submissions that nobody has closed or withdrawn.
    """

    def __init__(
        self,
        script_for: Callable[[EngineRequest], Script],
        *,
        health: ClusterHealth | None = None,
    ) -> None:
        self._script_for = script_for
        self._health = ClusterHealth(num_replicas=1) if health is None else health
        self.requests: list[EngineRequest] = []
        self.feeds: list[ScriptedFeed] = []
        self.num_open = 0

    async def open(self, request: EngineRequest) -> ScriptedFeed:
        """Admit after the scripted time, or raise the scripted error."""
        self.requests.append(request)
        script = self._script_for(request)
        self.num_open += 1
        try:
            await asyncio.sleep(script.admission_s)
            if script.admission_error is not None:
                raise script.admission_error
        except BaseException:
            self.num_open -= 1
            raise
        feed = ScriptedFeed(request, script, on_close=self._count_closed)
        self.feeds.append(feed)
        return feed

    def health(self) -> ClusterHealth:
        """What the script says."""
        return self._health

    def _count_closed(self) -> None:
        self.num_open -= 1
