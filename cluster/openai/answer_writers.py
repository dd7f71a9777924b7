"""The two forms of an answer: one JSON body when all is done, or a frame for each piece of news."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

import orjson
from starlette.types import Send

from cluster.openai.api_error import ApiError
from cluster.openai.choice_text import ChoiceEnd
from cluster.openai.event_frames import DONE, KEEP_ALIVE, EventFrames, error_frame
from cluster.openai.generation import ChoiceDelta, Generation
from cluster.openai.responses import (
    ChatChoice,
    ChatCompletion,
    ChatReply,
    Completion,
    CompletionChoice,
    PromptTokensDetails,
    ResponseIdentity,
    Usage,
)
from cluster.openai.token_logprobs import (
    ChatLogprobs,
    CompletionLogprobs,
    LogprobShape,
    ScoredToken,
)

_EVENT_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies of the nginx family hold small writes back unless they are told not to.
    (b"x-accel-buffering", b"no"),
]


def usage_of(generation: Generation) -> Usage:
    """The totals so far, over all prompts and choices."""
    prompt_tokens = generation.plan.num_prompt_tokens
    completion_tokens = generation.num_completion_tokens
    return Usage(
        prompt_tokens,
        completion_tokens,
        prompt_tokens + completion_tokens,
        PromptTokensDetails(generation.num_cached_tokens),
    )


@dataclass(frozen=True, slots=True)
class FinishedChoice:
    """The whole text of a choice, why it ended, and its tokens' log probabilities if asked for."""

    text: str
    end: ChoiceEnd
    logprobs: ChatLogprobs | CompletionLogprobs | None = None


class BodyMaker(Protocol):
    """Builds the value that is sent as one JSON body."""

    def __call__(
        self, identity: ResponseIdentity, choices: Sequence[FinishedChoice], usage: Usage
    ) -> ChatCompletion | Completion:
        """The body, with the choices in order."""
        ...


def chat_body(
    identity: ResponseIdentity, choices: Sequence[FinishedChoice], usage: Usage
) -> ChatCompletion:
    """The body of POST /v1/chat/completions."""
    listed = [
        ChatChoice(
            index=index,
            message=ChatReply("assistant", choice.text),
            logprobs=choice.logprobs if isinstance(choice.logprobs, ChatLogprobs) else None,
            finish_reason=choice.end.finish_reason,
            stop_reason=choice.end.stop_reason,
        )
        for index, choice in enumerate(choices)
    ]
    return ChatCompletion(
        id=identity.id,
        object="chat.completion",
        created=identity.created,
        model=identity.model,
        choices=listed,
        usage=usage,
        system_fingerprint=identity.system_fingerprint,
    )


def completion_body(
    identity: ResponseIdentity, choices: Sequence[FinishedChoice], usage: Usage
) -> Completion:
    """The body of POST /v1/completions."""
    listed = [
        CompletionChoice(
            index=index,
            text=choice.text,
            logprobs=choice.logprobs if isinstance(choice.logprobs, CompletionLogprobs) else None,
            finish_reason=choice.end.finish_reason,
            stop_reason=choice.end.stop_reason,
        )
        for index, choice in enumerate(choices)
    ]
    return Completion(
        id=identity.id,
        object="text_completion",
        created=identity.created,
        model=identity.model,
        choices=listed,
        usage=usage,
        system_fingerprint=identity.system_fingerprint,
    )


class WholeWriter:
    """Collects every choice, then sends one JSON body with those that the client gets.

    logprobs: how to show log probabilities; None if the client did not ask.
    """

    def __init__(
        self,
        identity: ResponseIdentity,
        make_body: BodyMaker,
        *,
        logprobs: LogprobShape | None = None,
    ) -> None:
        self._identity = identity
        self._make_body = make_body
        self._logprobs = logprobs

    async def write(self, generation: Generation, send: Send) -> None:
        """Send nothing until every choice has ended."""
        pieces: defaultdict[int, list[str]] = defaultdict(list)
        tokens: defaultdict[int, list[ScoredToken]] = defaultdict(list)
        ends: dict[int, ChoiceEnd] = {}
        async with aclosing(generation.deltas()) as deltas:
            async for delta in deltas:
                pieces[delta.choice].append(delta.text)
                tokens[delta.choice].extend(delta.tokens)
                if delta.end is not None:
                    ends[delta.choice] = delta.end
        shape = self._logprobs
        choices = [
            FinishedChoice(
                "".join(pieces[number]),
                ends[number],
                None if shape is None else shape(number, tokens[number]),
            )
            for number in generation.shown_choices()
        ]
        body = self._make_body(self._identity, choices, usage_of(generation))
        await _send_whole(send, 200, orjson.dumps(body))

    async def keep_alive(self, send: Send) -> None:
        """A whole answer has no way to show life before its status."""

    async def fail(self, error: ApiError, send: Send) -> None:
        """An error body with its own status."""
        await send_error(error, send)


class StreamWriter:
    """Sends each piece of news as it comes.

    The headers wait for the first news (or the first keep-alive), so that what fails before the
    first token is answered with its true status. logprobs: as in WholeWriter.
    """

    def __init__(
        self,
        frames: EventFrames,
        *,
        include_usage: bool,
        continuous_usage: bool,
        logprobs: LogprobShape | None = None,
    ) -> None:
        self._frames = frames
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        self._opened: set[int] = set()
        self._has_started = False

    async def write(self, generation: Generation, send: Send) -> None:
        """Frames of survey 4.2: opening, text, finish for each choice; usage; DONE."""
        async with aclosing(generation.deltas()) as deltas:
            async for delta in deltas:
                usage = usage_of(generation) if self._continuous_usage else None
                if body := self._frames_of(delta, usage):
                    await self._send_frames(body, send)
        last = DONE
        if self._include_usage:
            last = self._frames.usage(usage_of(generation)) + DONE
        await self._send_frames(last, send, is_last=True)

    def _frames_of(self, delta: ChoiceDelta, usage: Usage | None) -> bytes:
        body = b""
        if delta.choice not in self._opened:
            self._opened.add(delta.choice)
            body = self._frames.opening(delta.choice, usage)
        if self._logprobs is not None and delta.tokens:
            logprobs = self._logprobs(delta.choice, delta.tokens)
            body += self._frames.text(delta.choice, delta.text, usage, logprobs)
        elif delta.text:
            body += self._frames.text(delta.choice, delta.text, usage)
        if delta.end is not None:
            body += self._frames.finish(delta.choice, delta.end, usage)
        return body

    async def keep_alive(self, send: Send) -> None:
        """A comment line, which clients skip."""
        await self._send_frames(KEEP_ALIVE, send)

    async def fail(self, error: ApiError, send: Send) -> None:
        """Before the headers an ordinary error; after them a frame with the error, then DONE."""
        if self._has_started:
            await self._send_frames(error_frame(error.body) + DONE, send, is_last=True)
        else:
            await send_error(error, send)

    async def _send_frames(self, body: bytes, send: Send, *, is_last: bool = False) -> None:
        if not self._has_started:
            self._has_started = True
            await send(
                {"type": "http.response.start", "status": 200, "headers": _EVENT_STREAM_HEADERS}
            )
        await send({"type": "http.response.body", "body": body, "more_body": not is_last})


async def send_error(error: ApiError, send: Send) -> None:
    """A whole answer that is an error."""
    headers = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    await _send_whole(send, error.status, error.body.encode(), headers)


async def _send_whole(
    send: Send, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    fixed = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body})
