"""Two pools, started by the command: what two replicas answer is what one answers alone."""

import json
import re
import time
import urllib.request

import pytest

pytestmark = pytest.mark.e2e

TALE = "The old lighthouse keeper counted the ships and wrote each name into his book. " * 30


@pytest.fixture(scope="module")
def pools(free_port, tmp_path_factory, start_service, stop_service):
    """One prefill and one decode replica of the demo model, whose prompts are all handed over."""
    log = tmp_path_factory.mktemp("pools") / "serve.log"
    running = start_service(
        *("--prefill", "1", "--decode", "1", "--disaggregation", "always", "--deterministic"),
        port=free_port(),
        log=log,
    )
    yield running
    stop_service(running)


@pytest.fixture(scope="module")
def alone(free_port, tmp_path_factory, start_service, stop_service):
    """One replica of the same model that does all of it."""
    log = tmp_path_factory.mktemp("alone") / "serve.log"
    running = start_service("--deterministic", port=free_port(), log=log)
    yield running
    stop_service(running)


def text(service, prompt, **sampling):
    """What the model says."""
    body = {"model": "SmolLM2-135M-Instruct", "prompt": prompt, "max_tokens": 24, **sampling}
    request = urllib.request.Request(
        f"{service.base_url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["choices"][0]["text"]


def figure(service, name, label):
    """A counter of the gateway's last report."""
    with urllib.request.urlopen(f"{service.base_url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(rf"^{name}{{[^}}]*{label}[^}}]*}} (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0}, {"temperature": 0.9, "seed": 11}], ids=["greedy", "seeded"]
)
def test_what_two_replicas_say_is_what_one_says(pools, alone, sampling):
    prompt = f"{sampling['temperature']} {TALE}"
    before = figure(pools, "pagoda:handoff_results_total", 'outcome="adopted"')
    assert text(pools, prompt, **sampling) == text(alone, prompt, **sampling)
    deadline = time.monotonic() + 10.0
    while figure(pools, "pagoda:handoff_results_total", 'outcome="adopted"') <= before:
        assert time.monotonic() < deadline, "nothing was handed over"
        time.sleep(0.2)
