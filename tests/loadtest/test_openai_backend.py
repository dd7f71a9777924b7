"""Bodies say what was asked, and events count as tokens only when they are."""

from typing import Any

import orjson
import pytest

from loadtest.call_record import CallRecord
from loadtest.openai_backend import OpenAIBackend, StreamError

MESSAGES = [{"role": "user", "content": "hi"}]


def read_all(kind: str, events: list[dict[str, Any]], num_choices: int = 1) -> CallRecord:
    backend = OpenAIBackend(kind, "m", keep_text=True)  # type: ignore[arg-type]
    record = CallRecord("r", "", 0.0, None, 7, num_choices=num_choices)
    for index, event in enumerate(events):
        backend.read(orjson.dumps(event), record, float(index))
    return record


def delta(content: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    inner = {**more} if content is None else {"content": content, **more}
    return {"choices": [{"index": 0, "delta": inner, "finish_reason": finish}]}


def test_a_completion_body_has_the_options_that_vllm_understands() -> None:
    backend = OpenAIBackend("openai", "m", ignore_eos=True, extra_body={"temperature": 0})
    body = orjson.loads(backend.body(MESSAGES, output_tokens=5, num_choices=2))
    assert body == {
        "model": "m",
        "prompt": "hi",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 5,
        "n": 2,
        "ignore_eos": True,
        "temperature": 0,
    }


def test_an_answer_without_a_length_may_end_by_itself() -> None:
    backend = OpenAIBackend("openai", "m", ignore_eos=True)
    body = orjson.loads(backend.body(MESSAGES, output_tokens=None, num_choices=1))
    assert "ignore_eos" not in body


def test_a_chat_body_has_messages_and_no_length_unless_wanted() -> None:
    body = orjson.loads(
        OpenAIBackend("openai-chat", "m").body(MESSAGES, output_tokens=None, num_choices=1)
    )
    assert body["messages"] == MESSAGES
    assert "max_tokens" not in body


def test_a_role_and_a_bare_end_are_no_tokens() -> None:
    record = read_all(
        "openai-chat",
        [delta("", role="assistant"), delta("Hel"), delta("lo"), delta(None, finish="stop")],
    )
    assert list(record.chunk_at) == [1.0, 2.0]
    assert (record.output_tokens, record.text, record.ended_at) == (2, "Hello", 3.0)


def test_a_token_whose_letters_are_held_back_is_a_token() -> None:
    assert list(read_all("openai-chat", [delta("a"), delta(""), delta("b")]).chunk_at) == [0, 1, 2]


def test_reasoning_is_text_the_user_waits_for() -> None:
    assert list(read_all("openai-chat", [delta(None, reasoning_content="hm")]).chunk_at) == [0.0]


def test_the_servers_usage_beats_our_count() -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    record = read_all("openai", [{"choices": [{"text": "abc"}]}, {"choices": [], "usage": usage}])
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (9, 12, 4)
    assert record.has_usage


def test_gaps_are_taken_within_each_choice() -> None:
    events = [{"choices": [{"index": index, "text": "x"}]} for index in (0, 1, 0, 1)]
    record = read_all("openai", events, num_choices=2)
    assert record.gaps_s() == [2.0, 2.0]
    assert record.tpot_s == 3.0


@pytest.mark.parametrize("payload", [b"<html>", b'{"error": {"message": "no room"}}'])
def test_errors_within_a_stream_are_raised(payload: bytes) -> None:
    with pytest.raises(StreamError):
        OpenAIBackend("openai", "m").read(payload, CallRecord("r", "", 0, None, 1), 0.0)
