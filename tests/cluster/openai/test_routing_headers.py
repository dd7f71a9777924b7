"""Session and latency headers: what reaches the router, and what is refused."""

import pytest

from cluster.openai.api_error import ApiError
from cluster.openai.choice_text import TextRules
from cluster.openai.generation import GenerationPlan
from cluster.openai.routing_headers import with_routing_headers
from tests.cluster.replica_harness import a_request

RULES = TextRules()


def planned(headers: dict[str, str], *, session_id: str | None = None) -> GenerationPlan:
    plan = GenerationPlan((a_request("r-0"), a_request("r-1")), RULES)
    return with_routing_headers(plan, headers, session_id=session_id)


def test_every_prompt_of_a_call_gets_the_callers_wishes():
    headers = {"x-session-id": "chat 7", "x-slo-ttft-ms": "250", "x-slo-tpot-ms": "40.5"}
    for request in planned(headers).requests:
        assert request.session_id == "chat 7"
        assert request.ttft_slo_s == pytest.approx(0.25)
        assert request.tpot_slo_s == pytest.approx(0.0405)


def test_without_headers_nothing_is_wished():
    for request in planned({}).requests:
        assert (request.session_id, request.ttft_slo_s, request.tpot_slo_s) == (None, None, None)


def test_a_session_may_stand_in_the_body_and_the_header_goes_before_it():
    assert planned({}, session_id="body").requests[0].session_id == "body"
    both = planned({"x-session-id": "header"}, session_id="body")
    assert both.requests[0].session_id == "header"


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"x-session-id": ""}, "x-session-id"),
        ({"x-session-id": "s" * 257}, "x-session-id"),
        ({"x-slo-ttft-ms": "soon"}, "x-slo-ttft-ms"),
        ({"x-slo-ttft-ms": "0"}, "x-slo-ttft-ms"),
        ({"x-slo-tpot-ms": "-5"}, "x-slo-tpot-ms"),
        ({"x-slo-tpot-ms": "nan"}, "x-slo-tpot-ms"),
        ({"x-slo-tpot-ms": "1e400"}, "x-slo-tpot-ms"),
    ],
)
def test_a_header_that_cannot_be_used_is_named(headers: dict[str, str], param: str):
    with pytest.raises(ApiError) as refused:
        planned(headers)
    assert refused.value.status == 400
    assert refused.value.body.param == param


def test_a_session_in_the_body_that_is_too_long_is_named():
    with pytest.raises(ApiError) as refused:
        planned({}, session_id="s" * 300)
    assert refused.value.body.param == "session_id"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    ],
)
def test_headers_reach_the_router_over_http(shared_gateway, path: str, body: dict[str, object]):
    headers = {"X-Session-Id": "chat 7", "X-SLO-TTFT-MS": "250"}
    assert shared_gateway.http.post(path, json=body, headers=headers).status_code == 200
    request = shared_gateway.dispatcher.requests[-1]
    assert (request.session_id, request.ttft_slo_s) == ("chat 7", 0.25)
    bad = shared_gateway.http.post(path, json=body, headers={"X-SLO-TTFT-MS": "soon"})
    assert bad.status_code == 400
    assert bad.json()["error"]["param"] == "x-slo-ttft-ms"
