"""Our own endpoint as the starter sees it: its address, a try-out line, and waiting for it."""

import http.server
import json
import shlex
import socket
import threading

import pytest

from cluster.config import GatewayConfig
from cluster.launch.endpoint import Endpoint, check_address_is_free, wait_until
from cluster.settings import SettingError


@pytest.fixture
def server():
    """Answers /health with the status in `health`, and keeps what was posted."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(self.server.health)
            self.end_headers()

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.server.posted.append((self.path, self.headers["Authorization"], json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            """Tests print nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.health, server.posted = 200, []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def endpoint(server, **settings):
    config = GatewayConfig(port=server.server_address[1], **settings)
    return Endpoint.of(config, model_name="model")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("pagoda.local", "http://pagoda.local:8000"),
    ],
)
def test_a_client_here_reaches_every_kind_of_address(host, url):
    assert Endpoint.of(GatewayConfig(host=host), model_name="m").url == url


def test_health_is_a_200_and_nothing_else(server, free_port):
    assert endpoint(server).is_healthy()
    server.health = 503
    assert not endpoint(server).is_healthy()
    nobody = Endpoint.of(GatewayConfig(port=free_port()), model_name="m")
    assert not nobody.is_healthy()


def test_the_warm_up_is_a_request_like_a_clients(server):
    endpoint(server, api_keys=("secret",), served_model_name="chat").warm_up(timeout_s=5.0)
    path, authorization, body = server.posted[0]
    assert (path, authorization) == ("/v1/completions", "Bearer secret")
    assert (body["model"], body["max_tokens"]) == ("chat", 1)


def test_the_line_to_paste_is_one_command_and_shows_no_key():
    config = GatewayConfig(api_keys=("secret",), served_model_name="chat")
    line = Endpoint.of(config, model_name="m").curl()
    words = shlex.split(line)
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert "Authorization: Bearer $PAGODA_API_KEY" in words
    assert json.loads(words[-1])["model"] == "chat"
    assert "secret" not in line
    assert "\n" not in line


def test_a_free_address_passes_and_a_taken_one_is_named(free_port):
    check_address_is_free(GatewayConfig(port=free_port()))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=f"port={port}: cannot listen on 127.0.0.1"):
            check_address_is_free(GatewayConfig(port=port))


def test_waiting_ends_when_it_is_so_or_when_time_is_up():
    now = [0.0]
    waits = {
        "timeout_s": 5.0,
        "clock": lambda: now[0],
        "sleep": lambda s: now.append(now.pop() + s),
    }
    assert wait_until(lambda: now[0] > 3.0, **waits)
    now[0] = 0.0
    assert not wait_until(lambda: False, **waits)
    assert 5.0 < now[0] < 5.3
