"""The frames of a stream as bytes, and when they are sent."""

import json
import time

import openai
import pytest

from replicas.request import FinishReason, Refusal, RefusalReason

HEAD = (
    b'data: {"id":"%s","object":"%s","created":1700000000,"model":"tiny/model",'
    b'"system_fingerprint":"pagoda-1.2.3-abababababab","choices":['
)
CHAT = HEAD % (b"chatcmpl-r1", b"chat.completion.chunk")
COMPLETION = HEAD % (b"cmpl-r1", b"text_completion")
OPEN = b',"logprobs":null,"finish_reason":null}'
DONE = b"data: [DONE]\n\n"


def streamed(gateway, path, **body):
    answer = gateway.http.post(path, json={"stream": True} | body, headers={"X-Request-Id": "r1"})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    return answer.content


def chat(gateway, **body):
    messages = [{"role": "user", "content": "Hi"}]
    return streamed(gateway, "/v1/chat/completions", messages=messages, **body)


def completion(gateway, **body):
    return streamed(gateway, "/v1/completions", **{"prompt": "Say"} | body)


def objects(content):
    frames = content.decode().split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]


def test_chat_frames_are_exactly_openais(start_gateway, says):
    assert chat(start_gateway(says("Hi"))) == b"".join(
        [
            CHAT + b'{"index":0,"delta":{"role":"assistant","content":""}' + OPEN + b"]}\n\n",
            CHAT + b'{"index":0,"delta":{"content":"H"}' + OPEN + b"]}\n\n",
            CHAT + b'{"index":0,"delta":{"content":"i"}' + OPEN + b"]}\n\n",
            CHAT + b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop",'
            b'"stop_reason":null}]}\n\n',
            DONE,
        ]
    )


def test_completion_frames_are_exactly_openais(start_gateway, says):
    assert completion(start_gateway(says('a"')), max_tokens=2) == b"".join(
        [
            COMPLETION + b'{"index":0,"text":"a"' + OPEN + b"]}\n\n",
            COMPLETION + b'{"index":0,"text":"\\""' + OPEN + b"]}\n\n",
            COMPLETION + b'{"index":0,"text":"","logprobs":null,"finish_reason":"length",'
            b'"stop_reason":null}]}\n\n',
            DONE,
        ]
    )


def test_usage_comes_last_and_is_null_before(start_gateway, says):
    gateway = start_gateway(says("ab", num_cached_tokens=2))
    chunks = objects(completion(gateway, stream_options={"include_usage": True}))
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None, None, None]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_usage_is_absent_unless_asked_for(gateway):
    for options in (None, {}, {"include_usage": False, "continuous_usage_stats": True}):
        assert all("usage" not in o for o in objects(chat(gateway, stream_options=options)))


def test_usage_can_ride_on_every_chunk(gateway):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = objects(chat(gateway, stream_options=options))
    totals = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    # The last token and the end token come in one step.
    assert totals == [1, 1, 2, 3, 4, 6, 6, 6]
    assert all(chunk["usage"]["prompt_tokens"] == 20 for chunk in chunks)


def test_choices_are_interleaved_each_in_order(start_gateway, says):
    gateway = start_gateway(says("abc", "def"))
    chunks = objects(chat(gateway, n=2))
    deltas = [(c["choices"][0]["index"], c["choices"][0]["delta"]) for c in chunks]
    assert [delta.get("content") for index, delta in deltas if index == 1] == [
        "",
        "d",
        "e",
        "f",
        None,
    ]
    assert [index for index, _ in deltas][:6] == [0, 0, 1, 1, 0, 1]
    assert [delta for _, delta in deltas if "role" in delta] == [
        {"role": "assistant", "content": ""}
    ] * 2


def test_prompts_are_streamed_side_by_side(start_gateway, says):
    gateway = start_gateway(says("abcdef", step_s=0.01), says("uvwxyz", step_s=0.01))
    chunks = objects(completion(gateway, prompt=["A", "B"]))
    order = [c["choices"][0]["index"] for c in chunks]
    texts = [
        "".join(c["choices"][0]["text"] for c in chunks if c["choices"][0]["index"] == i)
        for i in (0, 1)
    ]
    assert texts == ["abcdef", "uvwxyz"]
    assert order != sorted(order)


def test_no_delta_is_empty(start_gateway, says):
    gateway = start_gateway(says("é🏯 stop here"))
    chunks = objects(chat(gateway, stop="stop"))
    contents = [c["choices"][0]["delta"].get("content") for c in chunks]
    assert contents == ["", "é", "🏯", " ", None]


def test_text_that_may_begin_a_stop_string_is_held_back(start_gateway, says):
    gateway = start_gateway(says("a##b"))
    chunks = objects(completion(gateway, stop="###"))
    assert [c["choices"][0]["text"] for c in chunks] == ["a", "##b", ""]


def test_the_first_token_does_not_wait_for_the_second(start_gateway, says):
    gateway = start_gateway(says("abc", silent_after_tokens=1), max_silence_s=20.0)
    body = {"prompt": "Say", "stream": True}
    with gateway.http.stream("POST", "/v1/completions", json=body) as answer:
        frames = answer.iter_raw()
        assert b'"text":"a"' in next(frames)


def test_each_step_is_a_write_of_its_own(start_gateway, says):
    gateway = start_gateway(says("abc", step_s=0.3))
    body = {"prompt": "Say", "stream": True}
    with gateway.http.stream("POST", "/v1/completions", json=body) as answer:
        arrived = [time.monotonic() for _ in answer.iter_raw()]
    assert arrived[1] - arrived[0] > 0.05
    assert arrived[2] - arrived[1] > 0.05


def test_a_loss_after_the_first_token_is_a_frame_then_done(start_gateway, says):
    gateway = start_gateway(says("abcdef", lost_after_tokens=2))
    chunks = objects(chat(gateway))
    assert chunks[-1] == {
        "error": {
            "message": "The replica was lost while it worked on this request.",
            "type": "server_error",
            "param": None,
            "code": "replica_lost",
        }
    }
    assert [c["choices"][0]["delta"].get("content") for c in chunks[:-1]] == ["", "a", "b"]


def test_the_openai_client_raises_for_an_error_in_a_stream(start_gateway, says):
    client = start_gateway(says("abcdef", lost_after_tokens=2)).client()
    stream = client.completions.create(model="tiny/model", prompt="Say", stream=True)
    with pytest.raises(openai.APIError, match="replica was lost"):
        list(stream)


@pytest.mark.parametrize("stream", [True, False])
def test_a_loss_before_the_first_token_is_a_500(start_gateway, says, stream):
    gateway = start_gateway(says("abc", lost_after_tokens=0))
    answer = gateway.complete(stream=stream)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "replica_lost"


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.CANCELLED])
def test_an_end_that_nobody_asked_for_is_an_error(start_gateway, says, reason):
    gateway = start_gateway(says("abc", finish_reason=reason))
    assert gateway.complete().status_code == 500
    assert objects(completion(gateway))[-1]["error"]["type"] == "server_error"


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_expires_in_the_line_is_a_503(start_gateway, says, stream):
    refusal = Refusal(RefusalReason.EXPIRED, "Waited too long.", retry_after_s=2.5)
    answer = start_gateway(says("abc", expiry=refusal)).complete(stream=stream)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "3"
    assert answer.json()["error"]["message"] == "Waited too long."


def test_a_quiet_stream_is_kept_alive_by_comments(start_gateway, says):
    gateway = start_gateway(says("ab", step_s=0.35), keep_alive_s=0.1)
    content = completion(gateway)
    assert content.startswith(b": keep-alive\n\n")
    assert content.count(b": keep-alive\n\n") >= 4
    data = content.replace(b": keep-alive\n\n", b"")
    assert [c["choices"][0]["text"] for c in objects(data)] == ["a", "b", ""]


def test_a_stream_with_news_needs_no_comments(start_gateway, says):
    gateway = start_gateway(says("abcdefghij", step_s=0.15), keep_alive_s=0.6)
    assert b"keep-alive" not in completion(gateway)


def test_the_openai_client_skips_comments(start_gateway, says):
    client = start_gateway(says("ab", step_s=0.3), keep_alive_s=0.1).client()
    stream = client.completions.create(model="tiny/model", prompt="Say", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "ab"


@pytest.mark.parametrize("silent_after_tokens", [0, 1])
@pytest.mark.parametrize("stream", [True, False])
def test_a_silent_request_is_given_up(start_gateway, says, stream, silent_after_tokens):
    script = says("abc", silent_after_tokens=silent_after_tokens)
    gateway = start_gateway(script, max_silence_s=0.2)
    answer = gateway.complete(stream=stream)
    assert b"Nothing happened" in answer.content
    assert answer.status_code == (200 if stream and silent_after_tokens else 500)
    assert gateway.is_idle_within(1.0)
