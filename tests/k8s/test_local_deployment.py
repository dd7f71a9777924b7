"""The manifests' Serve config on a local Ray of two nodes: token, TLS, mTLS, ACL, under load."""

import asyncio
import copy
import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections import Counter

import httpx
import psutil
import pytest
import redis

from cluster.kubernetes import drain_node
from cluster.peer_tls import PEER_NAME
from tests.k8s.local_cluster import (
    HEAD,
    SECOND_WORKER,
    WORKER,
    local_cluster,
    localised,
    ray_node,
    wait_for,
)
from tests.k8s.manifests import K8S

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "SmolLM2-135M-Instruct"
PROMETHEUS = shutil.which("prometheus")
# Empty as long as nothing is wrong.
SHOW_FAULTS_ALONE = ("State, worst view of any gateway", "Failovers")
# Of requests that two pools share; here every replica does all of a request.
SHOW_POOLS_ALONE = (
    "Where prompts are computed, by reason",
    "What came of hand-offs",
)
# Of guesses, which nobody makes here.
SHOW_SPECULATION_ALONE = ("Right guesses by their place",)
EMPTY_HERE = (*SHOW_FAULTS_ALONE, *SHOW_POOLS_ALONE, *SHOW_SPECULATION_ALONE)


@pytest.fixture(scope="module")
def cluster(free_port):
    with local_cluster(free_port) as running:
        running.deploy(localised(running))
        running.wait_until_up()
        yield running


def completion(max_tokens=12, **more):
    return {"model": MODEL, "prompt": "Once upon a time", "max_tokens": max_tokens, **more}


def post(cluster, key, body):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = f"{cluster.url}/v1/completions"
    return httpx.post(url, json=body, headers=headers, timeout=60.0)


def names(processes):
    return [p.cmdline()[0] for p in processes if p.is_running() and p.cmdline()]


def test_a_client_with_a_key_is_answered_and_one_without_is_not(cluster):
    answer = post(cluster, cluster.api_key, completion())
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 12
    assert post(cluster, "", completion()).status_code == 401
    assert post(cluster, "wrong", completion()).status_code == 401


def test_replicas_and_gateways_run_on_workers_alone(cluster):
    on_worker = [n for n in names(cluster.children_of(WORKER)) if n.startswith("ray::ServeReplica")]
    assert sorted(on_worker) == [
        "ray::ServeReplica:pagoda:gateway",
        "ray::ServeReplica:pagoda:replica",
    ]
    assert not [n for n in names(cluster.children_of(HEAD)) if n.startswith("ray::ServeReplica")]


def test_probes_are_answered_without_a_token_and_the_dashboard_is_not(cluster):
    port = next(
        word.partition("=")[2]
        for process in cluster.children_of(WORKER)
        for word in (cluster._raylet(WORKER).cmdline())
        if process and "--listen-port=" in word
        for word in re.findall(r"--listen-port=\d+", word)
    )
    health = httpx.get(f"http://{WORKER}:{port}/api/healthz", timeout=5.0)
    assert (health.status_code, "success" in health.text) == (200, True)
    assert httpx.get(f"{cluster.dashboard}/api/serve/applications/", timeout=5.0).status_code == 401
    ready = httpx.get(f"http://127.0.0.1:{cluster.ports['worker-http']}/-/healthz", timeout=5.0)
    assert ready.status_code == 200


def token_stream_ports(cluster, address=WORKER):
    [replica] = [
        p
        for p in cluster.children_of(address)
        if p.cmdline()[:1] == ["ray::ServeReplica:pagoda:replica"]
    ]
    listening = [c for c in replica.net_connections("tcp") if c.status == "LISTEN"]
    return [connection.laddr.port for connection in listening]


def handshake(port, cluster, *, with_certificate):
    """Whether a TLS peer is let in; the server says no only after its own half, so read."""
    folder = cluster.folder / "pagoda-peer-tls"
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.set_alpn_protocols(["h2"])
    if with_certificate:
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5.0) as raw,
            context.wrap_socket(raw, server_hostname=PEER_NAME) as secure,
        ):
            # The opening words of HTTP/2, to which a server answers with its settings.
            secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
            return len(secure.recv(9)) == 9
    except (ssl.SSLError, ConnectionError):
        return False


def test_a_token_stream_takes_peers_with_the_clusters_certificate_alone(cluster):
    ports = token_stream_ports(cluster)
    taken = [port for port in ports if handshake(port, cluster, with_certificate=True)]
    assert len(taken) == 1, ports
    assert not handshake(taken[0], cluster, with_certificate=False)


def test_rays_memory_is_in_the_store_that_is_its_own(cluster):
    with redis.Redis(
        host="localhost",
        port=cluster.ports["valkey-gcs"],
        username="ray",
        password=cluster.secrets["pagoda-valkey-gcs"]["password"],
        ssl=True,
        ssl_ca_certs=str(cluster.folder / "pagoda-valkey-tls" / "ca.crt"),
    ) as client:
        assert any(b"RAY" in key for key in client.scan_iter(count=100))


async def load(cluster, *, until, outcomes):
    """Four clients, one call after another each, until told to stop."""
    headers = {"Authorization": f"Bearer {cluster.api_key}"}
    async with httpx.AsyncClient(headers=headers, timeout=120.0) as client:

        async def go_on():
            while not until.is_set():
                try:
                    answer = await client.post(
                        f"{cluster.url}/v1/completions", json=completion(24, ignore_eos=True)
                    )
                    is_good = answer.status_code == 200
                    outcomes[200 if is_good else f"{answer.status_code} {answer.text}"] += 1
                except httpx.HTTPError as error:
                    outcomes[repr(error)] += 1

        await asyncio.gather(*(go_on() for _ in range(4)))


async def test_a_rolling_update_under_load_fails_no_request(cluster):
    config = copy.deepcopy(cluster.config)
    config["applications"][0]["args"]["gateway"]["max_prompts"] = 17
    outcomes, done = Counter(), asyncio.Event()
    clients = asyncio.create_task(load(cluster, until=done, outcomes=outcomes))
    before = set(token_stream_ports(cluster))
    await asyncio.to_thread(cluster.deploy, config)

    def is_new():
        return cluster.is_up() and not before & set(token_stream_ports(cluster))

    try:
        await asyncio.to_thread(wait_for, _quietly(is_new), what="the update")
    finally:
        done.set()
        await clients
    assert set(outcomes) == {200}, outcomes
    assert outcomes[200] > 10
    refused = post(cluster, cluster.api_key, {**completion(), "prompt": ["a"] * 18})
    assert refused.status_code == 400


def _quietly(ask):
    """While replicas change there may be none, or two, to look at."""

    def is_so():
        try:
            return ask()
        except (ValueError, psutil.Error):
            return False

    return is_so


@pytest.fixture
def prometheus(cluster, free_port, tmp_path):
    """The URL at which a Prometheus answers that scrapes the cluster with the metrics key."""
    if PROMETHEUS is None:
        pytest.skip("prometheus is not installed (Debian: apt-get install prometheus)")
    port = free_port()
    (tmp_path / "key").write_text(cluster.metrics_key)
    scrape = {
        "job_name": "pagoda",
        "scrape_interval": "4s",
        "authorization": {"credentials_file": str(tmp_path / "key")},
        "static_configs": [{"targets": [cluster.url.removeprefix("http://")]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps({"scrape_configs": [scrape]}))
    command = [
        PROMETHEUS,
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    yield f"http://127.0.0.1:{port}/api/v1/query"
    process.terminate()
    process.wait(20)


async def test_every_panel_of_every_board_has_data_under_load(cluster, prometheus):
    done = asyncio.Event()
    clients = asyncio.create_task(load(cluster, until=done, outcomes=Counter()))
    deadline = time.monotonic() + 60.0
    empty = ["everything"]
    while empty and time.monotonic() < deadline:
        await asyncio.sleep(2.0)
        empty = await asyncio.to_thread(_empty_panels, prometheus)
    done.set()
    await clients
    assert empty == []


def _empty_panels(ask):
    """Panels none of whose queries finds anything, as "board: title"."""
    return [
        f"{board.name}: {panel['title']}"
        for board in (K8S / "dashboards").glob("*.json")
        for panel in json.loads(board.read_text())["panels"]
        if panel.get("targets") and panel["title"] not in EMPTY_HERE
        if not any(_has_data(ask, target["expr"]) for target in panel["targets"])
    ]


def _has_data(ask, query):
    for variable, value in (("$model", ".+"), ("$replica", ".+"), ("$__rate_interval", "60s")):
        query = query.replace(variable, value)
    try:
        answer = httpx.get(ask, params={"query": query, "time": time.time()}, timeout=5.0)
    except httpx.HTTPError:
        return False
    assert answer.status_code == 200, (query, answer.text)
    return bool(answer.json()["data"]["result"])


async def test_a_drained_pod_hands_over_and_fails_no_request(cluster):
    outcomes, done = Counter(), asyncio.Event()
    # The manifests' limit: with less than drain_timeout_s left Serve waits for no replacement.
    drain = [sys.executable, "-m", drain_node.__name__, "--limit-s=3600"]
    with ray_node(cluster, "second", SECOND_WORKER):
        await asyncio.to_thread(wait_for, lambda: cluster.children_of(SECOND_WORKER), what="a node")
        clients = asyncio.create_task(load(cluster, until=done, outcomes=outcomes))
        try:
            drained = await asyncio.to_thread(
                subprocess.run,
                [*drain, f"--node-id={cluster.node_id(WORKER)}"],
                env=cluster.environment("client"),
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            await asyncio.sleep(2.0)
        finally:
            done.set()
            await clients
        assert drained.returncode == 0, drained.stderr
        assert "ray::ServeReplica" not in str(names(cluster.children_of(WORKER)))
        assert token_stream_ports(cluster, SECOND_WORKER)
    assert set(outcomes) == {200}, outcomes
    assert outcomes[200] > 10
