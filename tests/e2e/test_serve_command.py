"""The command as its user meets it: what it prints, two of them at once, and how it ends."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.e2e

README = Path(__file__).parents[2] / "README.md"


def ask(base_url, *, api_key=None):
    """The demo model's answer to a question that it answers alike every time."""
    body = {
        "model": "SmolLM2-135M-Instruct",
        "messages": [{"role": "user", "content": "Name three primary colors."}],
        "temperature": 0,
        "max_tokens": 16,
    }
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    request = urllib.request.Request(
        f"{base_url}/v1/chat/completions", data=json.dumps(body).encode(), headers=headers
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def serve(*arguments, environ=None):
    return subprocess.run(
        [sys.executable, "-m", "cluster.cli", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=environ,
        check=False,
    )


def valkey_of(service):
    return next(p for p in service.family() if "valkey" in p.name())


@pytest.fixture(scope="module")
def guarded(service, free_port, tmp_path_factory, start_service, stop_service):
    """A second service beside the first, with a key; ended by SIGTERM to its group."""
    log = tmp_path_factory.mktemp("guarded") / "serve.log"
    running = start_service("--api-key", "open-sesame", port=free_port(), log=log)
    yield running
    stop_service(running, signal.SIGTERM)


def test_the_printed_curl_line_can_be_pasted(service):
    line = re.search(r"^curl .*$", service.log.read_text(), re.MULTILINE)[0]
    ended = subprocess.run(
        [*shlex.split(line), "-s", "--max-time", "60"], capture_output=True, text=True, check=True
    )
    assert "Blue" in json.loads(ended.stdout)["choices"][0]["message"]["content"]


def test_the_python_example_of_the_readme_prints_words(base_url):
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1]
    assert "http://127.0.0.1:8000" in code
    ended = subprocess.run(
        [sys.executable, "-c", code.replace("http://127.0.0.1:8000", base_url)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.split()) > 3


def test_every_phase_of_the_start_is_logged_with_its_seconds(service):
    done = re.findall(r"phase done name='([^']+)' seconds=\d+\.\d", service.log.read_text())
    expected = ["prepare model", "store", "ray", "deploy", "engine ready", "first warm-up"]
    assert done == expected


def test_two_services_answer_beside_each_other(base_url, guarded):
    assert "Blue" in ask(base_url)
    assert "Blue" in ask(guarded.base_url, api_key="open-sesame")


def test_a_key_is_asked_for(guarded):
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(guarded.base_url)
    assert caught.value.code == 401
    caught.value.close()


def test_the_key_is_printed_nowhere(guarded):
    assert "open-sesame" not in guarded.log.read_text()


def test_requests_are_answered_while_the_store_dies_and_it_comes_back(service, base_url):
    first = valkey_of(service)
    first.kill()
    assert "Blue" in ask(base_url)
    deadline = time.monotonic() + 15.0
    while not any("valkey" in p.name() and p.pid != first.pid for p in living(service)):
        assert time.monotonic() < deadline, "the store did not come back"
        time.sleep(0.1)


def living(service):
    return [p for p in service.family() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_the_port_of_a_running_service_is_refused_at_once(base_url):
    began_at = time.monotonic()
    ended = serve("--port", base_url.rpartition(":")[2])
    assert ended.returncode == 2
    assert "cannot listen on 127.0.0.1" in ended.stderr
    assert time.monotonic() - began_at < 10.0


def test_a_model_that_is_not_there_fails_in_one_line(free_port):
    ended = serve("--port", str(free_port()), "--model", "./no-such-model")
    assert ended.returncode == 1
    assert "pagoda: error: prepare model: model ./no-such-model: no such folder" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_store_that_is_not_there_fails_in_one_line(free_port):
    url = f"redis://:hunter2@127.0.0.1:{free_port()}/0"
    ended = serve("--port", str(free_port()), "--redis-url", url)
    assert ended.returncode == 1
    assert "pagoda: error: store: redis://127.0.0.1" in ended.stderr
    assert "hunter2" not in ended.stderr + ended.stdout
    assert "Traceback" not in ended.stderr
