"""Runs one API call: opens a feed for each prompt, joins them, and closes them on every way out."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType

from cluster.dispatch.dispatcher import Dispatcher, TokenFeed
from cluster.errors import NoReplica, ReplicaLost, RequestRefused
from cluster.metrics.call_meter import CallMeter
from cluster.openai.choice_text import ChoiceEnd, ChoiceText, TextRules
from cluster.openai.token_logprobs import ScoredToken
from cluster.text.detokenizer import IncrementalDetokenizer
from replicas.request import EngineRequest, TokenEntry

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """What to generate: one engine request for each prompt, each with the same num_choices.

    num_shown: choices of each prompt that the client gets, the best ones first if that is not all
    (best_of). is_ranked: an engine gives the choices in that order itself (beam search). Shown
    choice c of prompt p has the index p * num_shown + c in the answer.
    """

    requests: tuple[EngineRequest, ...]
    rules: TextRules
    num_shown: int = 1
    is_ranked: bool = False

    @property
    def num_choices(self) -> int:
        """Choices of all prompts together that the client gets."""
        return len(self.requests) * self.num_shown

    @property
    def num_per_prompt(self) -> int:
        """Choices of each prompt that an engine generates."""
        return self.requests[0].num_choices

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts together; a prompt counts once for all its choices."""
        return sum(len(request.prompt_token_ids) for request in self.requests)


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """News of one choice; `text` may be empty while it is held back.

    choice: number over all generated choices, of which a client may get only some. tokens: those
    that came with log probabilities.
    """

    choice: int
    text: str
    end: ChoiceEnd | None
    tokens: tuple[ScoredToken, ...] = ()


class Generation:
    """An asynchronous context manager: entering submits, leaving cancels whatever still runs.

    Entering raises RequestRefused, NoReplica or ReplicaLost, and NoReplica too when admission
    takes longer than `admission_timeout_s`. new_detokenizer: makes one for a choice, given the
    token ids of its prompt. meter: what times the call. num_entries: news from engines so far.
    """

    def __init__(
        self,
        plan: GenerationPlan,
        *,
        dispatcher: Dispatcher,
        new_detokenizer: Callable[[Sequence[int]], IncrementalDetokenizer],
        admission_timeout_s: float,
        meter: CallMeter,
    ) -> None:
        self.plan = plan
        self._dispatcher = dispatcher
        self._admission_timeout_s = admission_timeout_s
        self._meter = meter
        self._choices = [
            ChoiceText(new_detokenizer(request.prompt_token_ids), plan.rules)
            for request in plan.requests
            for _ in range(request.num_choices)
        ]
        self._feeds: list[TokenFeed] = []
        self.num_entries = 0

    @property
    def num_completion_tokens(self) -> int:
        """Output tokens of all choices so far."""
        return sum(choice.num_tokens for choice in self._choices)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens, of all prompts, that an engine found computed."""
        per_prompt = self.plan.num_per_prompt
        # Choices of one prompt share it, so their figures are not added.
        return sum(
            max(choice.num_cached_tokens for choice in self._choices[start : start + per_prompt])
            for start in range(0, len(self._choices), per_prompt)
        )

    def shown_choices(self) -> list[int]:
        """Numbers of the choices that the client gets, in the order of the answer.

        The best of a prompt are those with the highest mean log probability of a token.
        """
        per_prompt, num_shown = self.plan.num_per_prompt, self.plan.num_shown

        def mean_logprob(number: int) -> float:
            choice = self._choices[number]
            return choice.sum_logprobs / max(choice.num_tokens, 1)

        shown: list[int] = []
        for start in range(0, len(self._choices), per_prompt):
            numbers = list(range(start, start + per_prompt))
            if num_shown < per_prompt and not self.plan.is_ranked:
                numbers.sort(key=mean_logprob, reverse=True)
            shown.extend(numbers[:num_shown])
        return shown

    async def __aenter__(self) -> "Generation":
        opening = [
            asyncio.create_task(self._dispatcher.open(request)) for request in self.plan.requests
        ]
        try:
            await asyncio.wait(
                opening, timeout=self._admission_timeout_s, return_when=asyncio.FIRST_EXCEPTION
            )
        except asyncio.CancelledError:
            await self._withdraw(opening)
            raise
        if not all(_has_opened(task) for task in opening):
            raise await self._withdraw(opening)
        self._feeds = [task.result() for task in opening]
        self._meter.note_admitted()
        return self

    async def _withdraw(self, opening: Sequence["asyncio.Task[TokenFeed]"]) -> BaseException:
        """Undo what was opened and give up the rest; the reason, as an error to raise."""
        for task in opening:
            task.cancel()
        await asyncio.wait(opening)
        self._feeds = [task.result() for task in opening if _has_opened(task)]
        await self.close()
        errors = [task.exception() for task in opening if not task.cancelled()]
        found = [error for error in errors if error is not None]
        return found[0] if found else NoReplica("No replica admitted the request in time.")

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave every feed; what still runs is cancelled. Safe to call twice."""
        feeds, self._feeds = self._feeds, []
        outcomes = await asyncio.gather(*(feed.close() for feed in feeds), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                log.error("closing a feed failed", exc_info=outcome)

    async def deltas(self) -> AsyncGenerator[ChoiceDelta, None]:
        """News of each choice in order, the choices interleaved, until all have ended.

        Raises RequestRefused if an admitted request expired in the waiting line, ReplicaLost if
        its engine failed.
        """
        per_prompt = self.plan.num_per_prompt
        num_running = len(self._choices)
        async with aclosing(_entries(self._feeds)) as entries:
            async for prompt, entry in entries:
                self.num_entries += 1
                if entry.refusal is not None:
                    raise RequestRefused(entry.refusal)
                index = prompt * per_prompt + entry.choice
                choice = self._choices[index]
                if entry.handoff is not None:
                    self._meter.note_handoff(index, entry.handoff)
                if choice.end is not None or not (entry.token_ids or entry.finish_reason):
                    continue
                text, end = choice.push(entry)
                self._meter.note_entry(index, entry, choice.num_tokens)
                if end is not None:
                    self._meter.note_end(index, end.finish_reason)
                    num_running -= 1
                    if entry.finish_reason is None:
                        self._feeds[prompt].finish_choice(entry.choice)
                tokens = choice.take_scored() if entry.logprobs else ()
                yield ChoiceDelta(index, text, end, tokens)
                if not num_running:
                    return
        raise ReplicaLost("The model server stopped before this request was finished.")


def _has_opened(task: "asyncio.Task[TokenFeed]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def _entries(feeds: Sequence[TokenFeed]) -> AsyncGenerator[tuple[int, TokenEntry], None]:
    """Entries of all feeds as they come, each with the index of its feed."""
    if len(feeds) == 1:
        async for entry in feeds[0]:
            yield 0, entry
        return
    arrived: asyncio.Queue[tuple[int, TokenEntry] | asyncio.Task[None]] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(index, feed, arrived)) for index, feed in enumerate(feeds)]
    for pump in pumps:
        pump.add_done_callback(arrived.put_nowait)
    try:
        num_open = len(pumps)
        while num_open:
            item = await arrived.get()
            if isinstance(item, asyncio.Task):
                item.result()
                num_open -= 1
            else:
                yield item
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.wait(pumps)


async def _pump(
    index: int,
    feed: TokenFeed,
    arrived: "asyncio.Queue[tuple[int, TokenEntry] | asyncio.Task[None]]",
) -> None:
    async for entry in feed:
        arrived.put_nowait((index, entry))
