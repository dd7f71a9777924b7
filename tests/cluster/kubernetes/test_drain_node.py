"""Draining a pod's node: what counts as left, and how long is waited for it."""

import http.server
import os
import subprocess
import sys
import threading

import pytest

from cluster.kubernetes.drain_node import (
    NoSuchNode,
    RayNode,
    Remainder,
    _requests_in_haproxy,
    find_node,
    main,
    remainder,
    wait_until_empty,
)

NOTHING = Remainder(num_replicas=0, num_haproxies=1, num_requests=0)

HAPROXY = """\
# TYPE haproxy_backend_current_sessions gauge
haproxy_backend_current_sessions{proxy="http-pagoda"} 3
haproxy_backend_current_sessions{proxy="stats"} 1
haproxy_backend_current_sessions{proxy="default_backend"} 0
"""


class Watch:
    """A clock that moves by sleeping."""

    def __init__(self):
        self.now_s = 0.0

    def clock(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.mark.parametrize(
    "left",
    [
        Remainder(num_replicas=1, num_haproxies=1, num_requests=0),
        Remainder(num_replicas=0, num_haproxies=2, num_requests=0),
        Remainder(num_replicas=0, num_haproxies=1, num_requests=1),
    ],
)
def test_replicas_requests_and_older_haproxies_are_waited_for(left):
    assert not left.is_nothing
    seen = iter([left, left, NOTHING])
    watch = Watch()
    assert wait_until_empty(lambda: next(seen), limit_s=10, clock=watch.clock, sleep=watch.sleep)
    assert watch.now_s == 2.0


def test_waiting_ends_at_the_limit():
    left = Remainder(num_replicas=1, num_haproxies=1, num_requests=0)
    watch = Watch()
    assert not wait_until_empty(lambda: left, limit_s=5, clock=watch.clock, sleep=watch.sleep)
    assert watch.now_s == 5.0


def test_a_node_without_haproxy_is_empty_too():
    assert Remainder(num_replicas=0, num_haproxies=0, num_requests=0).is_nothing


@pytest.fixture
def metrics_port():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(HAPROXY.encode())

        def log_message(self, *arguments):
            """Nothing, in a test."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture
def children():
    """Starts children of this process under names that Ray and Serve give theirs."""
    started = []

    def start(name):
        code = "import time; print('up', flush=True); time.sleep(60)"
        process = subprocess.Popen([name, "-c", code], executable=sys.executable, stdout=-1)
        process.stdout.readline()
        started.append(process)

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_serves_replicas_among_a_raylets_children_are_counted(children, metrics_port):
    children("ray::ServeReplica:pagoda:gateway")
    children("ray::ServeReplica:pagoda:replica")
    children("ray::DashboardAgent")
    node = RayNode(pid=os.getpid(), node_id="n", gcs_address="127.0.0.1:1")
    left = remainder(node, metrics_port=metrics_port)
    assert left.num_replicas == 2
    # Nobody here is called haproxy, so nobody is asked.
    assert left.num_requests == 0


def test_only_requests_to_gateways_count(metrics_port):
    assert _requests_in_haproxy(metrics_port) == 3


def test_a_raylet_that_is_gone_has_nothing_left():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert remainder(RayNode(ended.pid, "n", "a:1"), metrics_port=1) == Remainder(0, 0, 0)


def test_a_pod_without_a_raylet_says_so(capsys):
    with pytest.raises(NoSuchNode):
        find_node("a-node-that-nobody-has")
    assert main(["--limit-s=1", "--node-id=a-node-that-nobody-has"]) == 1
    assert "a-node-that-nobody-has" in capsys.readouterr().err
