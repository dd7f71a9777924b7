"""What surrounds the two generation routes: models, health, keys, ids, docs, unknown paths."""

import re
import socket

import openai
import pytest

from cluster.dispatch.dispatcher import ClusterHealth

ROUTES = ["/v1/models", "/v1/models/tiny/model", "/docs", "/openapi.json", "/nowhere"]


def test_models_are_listed(shared_gateway):
    models = shared_gateway.client().models.list().data
    assert [(model.id, model.object, model.owned_by) for model in models] == [
        ("tiny/model", "model", "pagoda")
    ]
    assert models[0].max_model_len == 256


def test_a_model_is_found_by_its_name_with_a_slash(shared_gateway):
    assert shared_gateway.http.get("/v1/models/tiny/model").json()["id"] == "tiny/model"
    assert shared_gateway.client().models.retrieve("tiny/model").id == "tiny/model"


def test_an_unknown_model_is_not_found(shared_gateway):
    with pytest.raises(openai.NotFoundError) as caught:
        shared_gateway.client().models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_the_served_name_replaces_the_models_own(start_gateway):
    gateway = start_gateway(served_model_name="alias")
    assert gateway.http.get("/v1/models").json()["data"][0]["id"] == "alias"
    assert gateway.chat(model="alias").json()["model"] == "alias"
    assert gateway.chat(model="tiny/model").status_code == 404


def test_a_healthy_cluster_is_a_200(shared_gateway):
    answer = shared_gateway.http.get("/health")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok", "num_replicas": 1, "problems": []}


@pytest.mark.parametrize(
    ("health", "problems"),
    [
        (ClusterHealth(0), ["No replica can take requests."]),
        (ClusterHealth(2, ("Replica a is stuck.",)), ["Replica a is stuck."]),
    ],
)
def test_a_cluster_without_progress_is_a_503_with_its_problems(start_gateway, health, problems):
    answer = start_gateway(health=health).http.get("/health")
    assert answer.status_code == 503
    assert answer.json()["status"] == "unhealthy"
    assert answer.json()["problems"] == problems


def test_the_version_is_told(shared_gateway):
    assert shared_gateway.http.get("/version").json() == {"version": "1.2.3"}


def test_an_unknown_path_is_a_404_in_openais_shape(shared_gateway):
    answer = shared_gateway.http.get("/v1/nothing")
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert "/v1/nothing" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/completions"), ("POST", "/health"), ("PUT", "/v1/models")]
)
def test_a_wrong_method_is_a_405_in_openais_shape(shared_gateway, method, path):
    answer = shared_gateway.http.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"]
    assert answer.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Bearer", "Basic key-one", "k"])
def test_every_route_but_two_wants_a_key(start_gateway, authorization):
    gateway = start_gateway(api_keys=("key-one", "key-two"))
    headers = {} if authorization is None else {"Authorization": authorization}
    answers = [gateway.http.get(path, headers=headers) for path in ROUTES]
    answers.append(gateway.http.post("/v1/completions", content=b"{", headers=headers))
    answers.append(gateway.http.post("/v1/chat/completions", json={}, headers=headers))
    assert {answer.status_code for answer in answers} == {401}
    for answer in answers:
        assert answer.json()["error"]["type"] == "authentication_error"
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
    assert gateway.http.get("/health", headers=headers).status_code == 200
    assert gateway.http.get("/version", headers=headers).status_code == 200


@pytest.mark.parametrize("key", ["key-one", "schlüssel"])
def test_any_of_the_keys_opens(start_gateway, key):
    gateway = start_gateway(api_keys=("other", key))
    headers = {"Authorization": f"Bearer {key}".encode()}
    assert gateway.http.get("/v1/models", headers=headers).status_code == 200


def test_the_openai_client_brings_its_key(start_gateway):
    gateway = start_gateway(api_keys=("key-one",))
    assert gateway.client(api_key="key-one").models.list().data
    with pytest.raises(openai.AuthenticationError):
        gateway.client(api_key="key").models.list()


def test_an_empty_key_is_no_key(start_gateway):
    with pytest.raises(ValueError, match="api_keys"):
        start_gateway(api_keys=("key-one", ""))


def test_a_path_that_only_looks_open_is_guarded(start_gateway):
    gateway = start_gateway(api_keys=("key-one",))
    for path in ("/health/", "//health", "/version/../v1/models", "/HEALTH", "/health%2f"):
        assert gateway.http.get(gateway.url + path).status_code in (401, 404)


@pytest.mark.parametrize("path", ["/health", "/nowhere", "/v1/models"])
def test_the_request_id_is_sent_back(shared_gateway, path):
    answer = shared_gateway.http.get(path, headers={"X-Request-Id": "abc-1"})
    assert answer.headers.get_list("x-request-id") == ["abc-1"]


@pytest.mark.parametrize("given", ["", "two words", "x" * 129, "a\tb"])
def test_a_request_id_that_cannot_be_used_is_replaced(shared_gateway, given):
    answer = shared_gateway.http.get("/version", headers={"X-Request-Id": given})
    assert re.fullmatch(r"[0-9a-f]{32}", answer.headers["x-request-id"])


def test_the_request_id_of_the_body_is_used_unless_a_header_has_one(gateway):
    named = gateway.chat(request_id="from-body")
    assert named.json()["id"] == "chatcmpl-from-body"
    assert named.headers["x-request-id"] == "from-body"
    both = gateway.http.post(
        "/v1/completions",
        json={"prompt": "Say", "request_id": "from-body"},
        headers={"X-Request-Id": "from-header"},
    )
    assert both.json()["id"] == "cmpl-from-header"


def test_errors_carry_the_request_id_too(shared_gateway):
    answer = shared_gateway.http.post(
        "/v1/completions", content=b"{", headers={"X-Request-Id": "abc-1"}
    )
    assert answer.headers["x-request-id"] == "abc-1"


def test_other_origins_are_shut_out_by_default(shared_gateway):
    answer = shared_gateway.http.get("/version", headers={"Origin": "http://page.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_allowed_origins_may_call_with_a_key(start_gateway):
    gateway = start_gateway(allowed_origins=("http://page.example",), api_keys=("k",))
    asking = {
        "Origin": "http://page.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    preflight = gateway.http.options("/v1/completions", headers=asking)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "http://page.example"
    refused = gateway.http.get("/v1/models", headers={"Origin": "http://page.example"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "http://page.example"


def test_the_schema_describes_both_bodies(shared_gateway):
    schema = shared_gateway.http.get("/openapi.json").json()
    for path, model in (("completions", "CompletionRequest"), ("chat/completions", "ChatRequest")):
        body = schema["paths"][f"/v1/{path}"]["post"]["requestBody"]
        reference = body["content"]["application/json"]["schema"]["$ref"]
        assert reference == f"#/components/schemas/{model}"
        assert "max_tokens" in schema["components"]["schemas"][model]["properties"]


def test_every_reference_in_the_schema_is_defined(shared_gateway):
    answer = shared_gateway.http.get("/openapi.json")
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', answer.text))
    assert names
    assert names <= set(answer.json()["components"]["schemas"])


def test_the_docs_page_needs_nothing_from_outside(shared_gateway):
    answer = shared_gateway.http.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert "openapi.json" in answer.text
    assert not re.search(r"https?://|src=|@import", answer.text)


def test_a_body_that_never_arrives_is_a_408(start_gateway):
    gateway = start_gateway(body_timeout_s=0.2)
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"request_timeout" in answer
