"""Speaks the two OpenAI completion dialects: what to send, and what an answer's event means."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from loadtest.call_record import CallRecord

BackendKind = Literal["openai", "openai-chat"]
DEFAULT_ENDPOINT: dict[str, str] = {
    "openai": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
}
Message = Mapping[str, str]


class StreamError(Exception):
    """The server reported an error, or sent nonsense, in the middle of a stream."""


@dataclass(frozen=True, slots=True)
class OpenAIBackend:
    """Builds request bodies and reads streamed events for one model behind one dialect.

    `continuous_usage` asks for a usage count in each event (vLLM understands it).
    `keep_text` keeps the answer's text: needed for conversations and detailed results.
    """

    kind: BackendKind
    model: str
    ignore_eos: bool = False
    continuous_usage: bool = False
    keep_text: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def body(
        self, messages: Sequence[Message], *, output_tokens: int | None, num_choices: int
    ) -> bytes:
        """The JSON of one streamed request for a conversation whose last message is new."""
        options: dict[str, bool] = {"include_usage": True}
        if self.continuous_usage:
            options["continuous_usage_stats"] = True
        body: dict[str, Any] = {"model": self.model, "stream": True, "stream_options": options}
        if self.kind == "openai-chat":
            body["messages"] = list(messages)
        else:
            body["prompt"] = "\n".join(message["content"] for message in messages)
        if output_tokens is not None:
            body["max_tokens"] = output_tokens
        if num_choices > 1:
            body["n"] = num_choices
        # Without a length, an answer that ignores its end would fill the whole context.
        if self.ignore_eos and output_tokens is not None:
            body["ignore_eos"] = True
        return orjson.dumps(body | dict(self.extra_body))

    def read(self, payload: bytes, record: CallRecord, now: float) -> None:
        """Enter one event, received at `now`, into `record`. Raises StreamError."""
        try:
            event = orjson.loads(payload)
        except orjson.JSONDecodeError as error:
            raise StreamError(f"not JSON: {payload[:80]!r}") from error
        if event.get("error"):
            raise StreamError(str(event["error"])[:300])
        for choice in event.get("choices") or ():
            text = self._text_of(choice)
            if text is not None:
                self._enter_text(record, text, choice.get("index", 0), now)
            if choice.get("finish_reason") is not None:
                record.ended_at = now
        if event.get("usage"):
            enter_usage(record, event["usage"])

    def _enter_text(self, record: CallRecord, text: str, index: int, now: float) -> None:
        record.chunk_at.append(now)
        if record.num_choices > 1:
            record.chunk_choice.append(index)
        if not record.has_usage:
            record.output_tokens += 1
        if self.keep_text and index == 0:
            record.text += text

    def _text_of(self, choice: Mapping[str, Any]) -> str | None:
        """The text an event adds; None for a role, a bare finish reason, or nothing at all."""
        if self.kind == "openai":
            text = choice.get("text") or ""
            is_held_back = not text and choice.get("finish_reason") is None
        else:
            delta = choice.get("delta") or {}
            text = delta.get("content") or delta.get("reasoning_content") or ""
            text = text or delta.get("reasoning") or ("" if not delta.get("tool_calls") else " ")
            is_held_back = not text and choice.get("finish_reason") is None and "role" not in delta
        # An empty text that is neither role nor end is a token whose letters are not whole yet.
        return text if text or is_held_back else None


def enter_usage(record: CallRecord, usage: Mapping[str, Any]) -> None:
    """Prefer the server's own counts over ours."""
    record.has_usage = True
    record.output_tokens = int(usage.get("completion_tokens") or 0)
    record.prompt_tokens = int(usage.get("prompt_tokens") or record.prompt_tokens)
    details = usage.get("prompt_tokens_details") or {}
    record.cached_tokens = int(details.get("cached_tokens") or 0)
