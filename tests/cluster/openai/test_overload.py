"""What a client hears when the cluster cannot take its request; nothing is left behind."""

import time

import openai
import pytest

from cluster.errors import NoReplica, ReplicaLost, RequestRefused
from replicas.request import Refusal, RefusalReason


def refusal(reason, retry_after_s=None):
    return RequestRefused(Refusal(reason, "Said by the engine.", retry_after_s))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "retry_after"),
    [
        (refusal(RefusalReason.QUEUE_FULL, 2.2), 429, "rate_limit_error", "queue_full", "3"),
        (refusal(RefusalReason.QUEUE_FULL, 0.01), 429, "rate_limit_error", "queue_full", "1"),
        (
            refusal(RefusalReason.SLO_UNMEETABLE, 4.0),
            429,
            "rate_limit_error",
            "slo_unmeetable",
            "4",
        ),
        (refusal(RefusalReason.EXPIRED), 503, "server_error", "expired", "1"),
        (NoReplica("None is up.", retry_after_s=4), 503, "server_error", "no_replica", "4"),
        (ReplicaLost("It is gone."), 500, "server_error", "replica_lost", None),
        (
            refusal(RefusalReason.PROMPT_TOO_LONG),
            400,
            "invalid_request_error",
            "context_length_exceeded",
            None,
        ),
        (
            refusal(RefusalReason.NEVER_FITS),
            400,
            "invalid_request_error",
            "prompt_never_fits",
            None,
        ),
    ],
)
def test_each_refusal_has_its_status(
    start_gateway, says, stream, error, status, kind, code, retry_after
):
    answer = start_gateway(says("x", admission_error=error)).chat(stream=stream)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers.get("retry-after") == retry_after
    body = answer.json()["error"]
    assert (body["type"], body["code"], body["message"]) == (kind, code, str(error))


def test_the_openai_client_knows_a_full_line(start_gateway, says):
    error = refusal(RefusalReason.QUEUE_FULL, 1)
    client = start_gateway(says("x", admission_error=error)).client()
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model="tiny/model", prompt="Say")


def test_the_openai_client_tries_again_when_told_to(start_gateway, says):
    error = refusal(RefusalReason.QUEUE_FULL, 0.1)
    gateway = start_gateway(says("x", admission_error=error), says("Hello"))
    answer = gateway.client(max_retries=1).completions.create(model="tiny/model", prompt="Say")
    assert answer.choices[0].text == "Hello"


@pytest.mark.parametrize("stream", [True, False])
def test_admission_that_takes_too_long_is_a_503(start_gateway, says, stream):
    gateway = start_gateway(says("x", admission_s=30), admission_timeout_s=0.1)
    began_at = time.monotonic()
    answer = gateway.complete(stream=stream)
    assert answer.status_code == 503
    assert "retry-after" in answer.headers
    assert time.monotonic() - began_at < 5
    assert gateway.is_idle_within(1.0)


def test_one_refused_prompt_closes_the_others(start_gateway, says):
    error = refusal(RefusalReason.QUEUE_FULL, 1)
    gateway = start_gateway(says("a"), says("b", admission_s=30), says("c", admission_error=error))
    assert gateway.complete(prompt=["A", "B", "C"]).status_code == 429
    assert gateway.is_idle_within(1.0)


def test_one_lost_prompt_ends_the_whole_call(start_gateway, says):
    gateway = start_gateway(says("abc", step_s=30), says("d", lost_after_tokens=0))
    assert gateway.complete(prompt=["A", "B"]).status_code == 500
    assert gateway.is_idle_within(1.0)


def test_a_broken_dispatcher_is_a_plain_500(start_gateway, says, monkeypatch):
    gateway = start_gateway()

    async def explode(request):
        raise RuntimeError("secret /etc/path 10.0.0.1")

    monkeypatch.setattr(gateway.dispatcher, "open", explode)
    answer = gateway.complete()
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "secret" not in answer.text


def test_the_queue_timeout_goes_with_the_request(start_gateway):
    for setting, expected in ((12.5, 12.5), (0.0, None)):
        gateway = start_gateway(queue_timeout_s=setting)
        gateway.complete()
        assert gateway.dispatcher.requests[0].queue_timeout_s == expected
