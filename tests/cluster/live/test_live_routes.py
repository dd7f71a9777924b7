"""The page and its stream over HTTP: open shell, guarded data, fresh files, no watcher left."""

import json
import time

import httpx
import pytest

from cluster.live.live_routes import load_page
from tests.cluster.live_gateway import live_gateway

KEY = "open-sesame"
BEARER = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    with live_gateway(
        tmp_path_factory.mktemp("guarded"), num_replicas=1, api_keys=(KEY,)
    ) as running:
        yield running


@pytest.fixture
def http(guarded):
    with httpx.Client(base_url=guarded.url, timeout=20, verify=False) as client:
        yield client


def until(holds, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.01)


def updates(http, num, **options):
    """The first `num` updates."""
    with http.stream("GET", "/live", headers=BEARER, **options) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        return [json.loads(next(lines).removeprefix("data: ")) for _ in range(num)]


def test_every_file_of_the_page_is_open_without_a_key(http):
    for path, file in load_page().items():
        answer = http.get(path)
        assert answer.status_code == 200, path
        assert answer.content == file.content
        assert answer.headers["content-type"] == file.media_type


def test_the_open_files_name_neither_model_nor_version_nor_key(http):
    for path in load_page():
        text = http.get(path).text
        assert KEY not in text
        assert "tiny" not in text
        assert "1.2.3" not in text


@pytest.mark.parametrize("path", ["/live", "/docs", "/v1/models", "/page/", "/page/none.js", "//"])
def test_everything_else_needs_the_key(guarded, http, path):
    assert http.get(guarded.url + path).status_code == 401


def test_the_page_asks_for_nothing_from_elsewhere(http):
    policy = http.get("/").headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    for path in load_page():
        text = http.get(path).text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, path
        assert "https://" not in text, path


def test_a_file_that_is_known_is_not_sent_again(http):
    first = http.get("/page/app.js")
    assert first.headers["cache-control"] == "no-cache"
    again = http.get("/page/app.js", headers={"If-None-Match": f'"x", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    other = http.get("/page/app.js", headers={"If-None-Match": '"other"'})
    assert other.status_code == 200


def test_every_file_that_the_page_names_exists(http):
    page = load_page()
    scripts = {path: file.content.decode() for path, file in page.items() if path.endswith(".js")}
    for path, text in scripts.items():
        for line in text.splitlines():
            if line.startswith(("import ", "} from")):
                name = line.split('"')[1].removeprefix("./")
                assert f"/page/{name}" in page, (path, name)


def test_the_stream_tells_of_each_replica_with_its_blocks(guarded, http):
    found = updates(http, 4)
    assert [event["kind"] for event in found[0]["events"] + found[1]["events"]][:1] == ["met"]
    replica = found[-1]["replicas"][0]
    assert (replica["id"], replica["state"], replica["num_blocks"]) == ("replica-0", "active", 96)
    views = [update["replicas"][0]["view"] for update in found[1:]]
    assert any(view and view["cells"] for view in views)


def test_a_watcher_that_leaves_is_not_served_any_more(guarded, http):
    updates(http, 1)
    until(lambda: guarded.feed.num_watchers == 0)


def test_a_request_shows_in_the_stream_under_the_name_that_its_client_gave(guarded, http):
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hello there, how are you?"}],
        "max_tokens": 40,
        "stream": True,
    }
    headers = {**BEARER, "X-Request-Id": "0123456789abcdef"}
    with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        assert answer.status_code == 200
        found = updates(http, 5)
    spans = [
        span
        for update in found[1:]
        for span in (update["replicas"][0]["view"] or {"spans": []})["spans"]
    ]
    assert {span[1] for span in spans} == {"abcdef"}


def test_one_watcher_too_many_is_told_to_come_back(guarded, http, monkeypatch):
    monkeypatch.setattr("cluster.live.live_feed.MAX_WATCHERS", 0)
    answer = http.get("/live", headers=BEARER)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "too_many_watchers"
    assert int(answer.headers["retry-after"]) >= 1
