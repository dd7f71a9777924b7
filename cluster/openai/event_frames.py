"""Builds the frames of a stream from parts that were serialised once, at the request's start.

A frame repeats id, model, time and choice index; only the text and perhaps the usage are new. The
order of fields, the frames and the places of `usage` are those of survey 4.2.
"""

from typing import Protocol

import orjson

from cluster.openai.api_error import ErrorBody
from cluster.openai.choice_text import ChoiceEnd
from cluster.openai.responses import ResponseIdentity, Usage
from cluster.openai.token_logprobs import ChatLogprobs, CompletionLogprobs

Logprobs = ChatLogprobs | CompletionLogprobs

_NO_LOGPROBS = b',"logprobs":null,"finish_reason":null}'
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def error_frame(error: ErrorBody) -> bytes:
    """An error after the headers are sent; the stream ends after it with DONE."""
    return b"data: " + error.encode() + b"\n\n"


class EventFrames(Protocol):
    """The frames of one stream. `usage` is what the stream reports on every chunk, if it does."""

    def opening(self, choice: int, usage: Usage | None) -> bytes:
        """What comes before the first text of a choice; may be empty."""
        ...

    def text(
        self, choice: int, text: str, usage: Usage | None, logprobs: Logprobs | None = None
    ) -> bytes:
        """New text of a choice, with the log probabilities of its tokens if they were asked for."""
        ...

    def finish(self, choice: int, end: ChoiceEnd, usage: Usage | None) -> bytes:
        """The last chunk of a choice."""
        ...

    def usage(self, usage: Usage) -> bytes:
        """The totals, after the last choice has ended."""
        ...


class _FrameParts:
    """The constant parts: from `data:` to the choices, and from the choices to the end."""

    def __init__(
        self, identity: ResponseIdentity, object_name: str, *, num_choices: int, has_usage: bool
    ) -> None:
        constant = {
            "id": identity.id,
            "object": object_name,
            "created": identity.created,
            "model": identity.model,
            "system_fingerprint": identity.system_fingerprint,
        }
        self.head = b"data: " + orjson.dumps(constant)[:-1] + b',"choices":['
        self.choice_heads = [self.head + b'{"index":%d,' % index for index in range(num_choices)]
        self._tail = b'],"usage":null}\n\n' if has_usage else b"]}\n\n"

    def tail(self, usage: Usage | None) -> bytes:
        if usage is None:
            return self._tail
        return b'],"usage":' + orjson.dumps(usage) + b"}\n\n"


def _open_ending(logprobs: Logprobs | None) -> bytes:
    """What follows the text of a choice that goes on."""
    if logprobs is None:
        return _NO_LOGPROBS
    return b',"logprobs":' + orjson.dumps(logprobs) + b',"finish_reason":null}'


def _ending(end: ChoiceEnd) -> bytes:
    ending = {"finish_reason": end.finish_reason, "stop_reason": end.stop_reason}
    return b',"logprobs":null,' + orjson.dumps(ending)[1:]


class ChatFrames:
    """Frames of POST /v1/chat/completions; has_usage: whether chunks name `usage` at all."""

    def __init__(self, identity: ResponseIdentity, *, num_choices: int, has_usage: bool) -> None:
        self._parts = _FrameParts(
            identity, "chat.completion.chunk", num_choices=num_choices, has_usage=has_usage
        )
        self._text_heads = [head + b'"delta":{"content":' for head in self._parts.choice_heads]

    def opening(self, choice: int, usage: Usage | None) -> bytes:
        """The role, with empty content."""
        role = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        return self._parts.choice_heads[choice] + role + self._parts.tail(usage)

    def text(
        self, choice: int, text: str, usage: Usage | None, logprobs: Logprobs | None = None
    ) -> bytes:
        """New content of a choice."""
        rest = b"}" + _open_ending(logprobs)
        return self._text_heads[choice] + orjson.dumps(text) + rest + self._parts.tail(usage)

    def finish(self, choice: int, end: ChoiceEnd, usage: Usage | None) -> bytes:
        """An empty delta with the finish reason."""
        head = self._parts.choice_heads[choice] + b'"delta":{}'
        return head + _ending(end) + self._parts.tail(usage)

    def usage(self, usage: Usage) -> bytes:
        """No choices, only the totals."""
        return self._parts.head + self._parts.tail(usage)


class CompletionFrames:
    """Frames of POST /v1/completions; has_usage: whether chunks name `usage` at all."""

    def __init__(self, identity: ResponseIdentity, *, num_choices: int, has_usage: bool) -> None:
        self._parts = _FrameParts(
            identity, "text_completion", num_choices=num_choices, has_usage=has_usage
        )
        self._text_heads = [head + b'"text":' for head in self._parts.choice_heads]

    def opening(self, choice: int, usage: Usage | None) -> bytes:
        """Nothing: a completion has no role."""
        return b""

    def text(
        self, choice: int, text: str, usage: Usage | None, logprobs: Logprobs | None = None
    ) -> bytes:
        """New text of a choice."""
        rest = _open_ending(logprobs)
        return self._text_heads[choice] + orjson.dumps(text) + rest + self._parts.tail(usage)

    def finish(self, choice: int, end: ChoiceEnd, usage: Usage | None) -> bytes:
        """Empty text with the finish reason."""
        return self._text_heads[choice] + b'""' + _ending(end) + self._parts.tail(usage)

    def usage(self, usage: Usage) -> bytes:
        """No choices, only the totals."""
        return self._parts.head + self._parts.tail(usage)
