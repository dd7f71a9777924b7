"""A client that leaves, at any moment and in any way of asking: its request ends at once."""

import json
import socket
import time

import pytest

BODY = {"prompt": "Say", "max_tokens": 200}


def leave_when(gateway, is_time, **body):
    """Ask over a bare socket, and hang up as soon as the cluster has come that far."""
    host, port = gateway.url.removeprefix("http://").split(":")
    content = json.dumps(BODY | body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as client:
        client.sendall(head.encode() + content)
        deadline = time.monotonic() + 10
        while not is_time(gateway.dispatcher):
            assert time.monotonic() < deadline
            time.sleep(0.002)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_before_the_first_token_cancels(start_gateway, says, stream):
    gateway = start_gateway(says("abc", step_s=30))
    leave_when(gateway, lambda dispatcher: dispatcher.feeds, stream=stream)
    assert gateway.is_idle_within(1.0)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_during_admission_withdraws(start_gateway, says, stream):
    gateway = start_gateway(says("abc", admission_s=30))
    leave_when(gateway, lambda dispatcher: dispatcher.num_open, stream=stream)
    assert gateway.is_idle_within(1.0)
    assert gateway.dispatcher.feeds == []


def test_leaving_a_whole_answer_in_the_middle_cancels(start_gateway, says):
    gateway = start_gateway(says("x" * 200, silent_after_tokens=3))
    leave_when(gateway, lambda dispatcher: dispatcher.feeds)
    assert gateway.is_idle_within(1.0)


def test_leaving_a_stream_in_the_middle_cancels(start_gateway, says):
    gateway = start_gateway(says("x" * 200, step_s=0.05))
    with gateway.http.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
        frames = answer.iter_raw()
        next(frames)
        assert gateway.dispatcher.num_open == 1
    assert gateway.is_idle_within(1.0)


def test_leaving_a_stream_of_many_prompts_closes_each_feed(start_gateway, says):
    gateway = start_gateway(says("x" * 200, step_s=0.05))
    body = BODY | {"stream": True, "prompt": ["a", "b", "c"], "n": 2}
    with gateway.http.stream("POST", "/v1/completions", json=body) as answer:
        frames = answer.iter_raw()
        next(frames)
        assert gateway.dispatcher.num_open == 3
    assert gateway.is_idle_within(1.0)


def test_leaving_a_stream_that_has_gone_silent_cancels(start_gateway, says):
    gateway = start_gateway(says("abc", silent_after_tokens=1))
    with gateway.http.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
        frames = answer.iter_raw()
        next(frames)
    assert gateway.is_idle_within(1.0)


def test_the_openai_client_can_close_a_stream(start_gateway, says):
    gateway = start_gateway(says("x" * 200, step_s=0.05))
    stream = gateway.client().completions.create(
        model="tiny/model", prompt="Say", max_tokens=200, stream=True
    )
    next(iter(stream))
    stream.close()
    assert gateway.is_idle_within(1.0)


def test_others_go_on_when_one_leaves(start_gateway, says):
    gateway = start_gateway(says("x" * 200, step_s=0.01), says("Hello", step_s=0.05))
    with gateway.http.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
        frames = answer.iter_raw()
        next(frames)
    assert gateway.complete().json()["choices"][0]["text"] == "Hello"


def test_a_client_that_reads_nothing_is_given_up(start_gateway, says):
    text = "y" * 200
    gateway = start_gateway(
        says(*[text] * 100, tokens_per_entry=1), max_silence_s=0.3, keep_alive_s=0.1
    )
    body = BODY | {"stream": True, "n": 100}
    with gateway.http.stream("POST", "/v1/completions", json=body) as answer:
        # 20,000 frames are more than the socket's buffers hold, so the gateway must wait.
        assert answer.status_code == 200
        deadline = time.monotonic() + 10
        while gateway.dispatcher.num_open and time.monotonic() < deadline:
            time.sleep(0.02)
        assert gateway.dispatcher.num_open == 0
