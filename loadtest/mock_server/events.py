"""Forms OpenAI-shaped answers from fixed pieces of bytes, so that a token costs no JSON work."""

import time

import orjson

WORDS = (b" the", b" of", b" and", b" to", b" in", b" is", b" was", b" for", b" on", b" as")


class EventFactory:
    """Builds the server-sent events of one answer of `num_choices` choices.

    Two shapes: text completions, and chat completions, whose first event carries the role.
    With `usage_each` every event carries the usage so far.
    """

    def __init__(self, *, chat: bool, model: str, answer_id: str, usage_each: bool) -> None:
        kind = "chat.completion.chunk" if chat else "text_completion"
        head = {"id": answer_id, "object": kind, "created": int(time.time()), "model": model}
        self._head = orjson.dumps(head)[:-1]
        self._chat = chat
        self._usage_each = usage_each

    def role(self, *, num_choices: int) -> bytes:
        """The empty opening event of a chat answer; nothing for a text completion."""
        if not self._chat:
            return b""
        delta = b'{"role":"assistant","content":""}'
        return b"".join(
            self._event(self._choice(index, b'"delta":' + delta, b"null"), b"")
            for index in range(num_choices)
        )

    def text(
        self, *, index: int, text: bytes, finish: bytes, prompt_tokens: int, output_tokens: int
    ) -> bytes:
        """One event with text; `finish` is JSON (null or a quoted reason)."""
        part = b'"delta":{"content":"%b"}' if self._chat else b'"text":"%b"'
        usage = b""
        if self._usage_each:
            usage = b',"usage":' + usage_json(prompt_tokens, output_tokens)
        return self._event(self._choice(index, part % text, finish), usage)

    def usage(self, *, prompt_tokens: int, output_tokens: int) -> bytes:
        """The closing event with no choice and the usage of the whole answer."""
        return self._event(b"", b',"usage":' + usage_json(prompt_tokens, output_tokens))

    def whole(
        self, *, num_choices: int, text: bytes, prompt_tokens: int, output_tokens: int
    ) -> bytes:
        """The answer to a request that did not ask for a stream."""
        part = b'"message":{"role":"assistant","content":"%b"}' if self._chat else b'"text":"%b"'
        choices = b",".join(
            self._choice(index, part % text, b'"length"') for index in range(num_choices)
        )
        head = self._head.replace(b"chat.completion.chunk", b"chat.completion")
        usage = usage_json(prompt_tokens, output_tokens)
        return head + b',"choices":[%b],"usage":%b}' % (choices, usage)

    def _choice(self, index: int, part: bytes, finish: bytes) -> bytes:
        return b'{"index":%d,%b,"logprobs":null,"finish_reason":%b}' % (index, part, finish)

    def _event(self, choices: bytes, usage: bytes) -> bytes:
        return b'data: %b,"choices":[%b]%b}\n\n' % (self._head, choices, usage)


def usage_json(prompt_tokens: int, output_tokens: int) -> bytes:
    """The usage object of the OpenAI API."""
    total = prompt_tokens + output_tokens
    return b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % (
        prompt_tokens,
        output_tokens,
        total,
    )


def words_of(num_tokens: int, *, start: int) -> bytes:
    """Text of `num_tokens` tokens, one word each, going round a short list."""
    return b"".join(WORDS[(start + i) % len(WORDS)] for i in range(num_tokens))


def error_json(message: str, kind: str, status: int) -> bytes:
    """An error in the OpenAI API's shape."""
    return orjson.dumps({"error": {"message": message, "type": kind, "code": status}})
