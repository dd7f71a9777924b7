"""Talks to our own HTTP endpoint: is its address free, is it up, does it answer, how to try it."""

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from cluster.config import GatewayConfig
from cluster.settings import SettingError

_QUESTION = "Name three primary colors."


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The service's address as a client on this machine uses it, and the key to it if it has one.

    model_name: the name that clients use.
    """

    url: str
    model_name: str
    api_key: str = ""

    @classmethod
    def of(cls, gateway: GatewayConfig, *, model_name: str) -> "Endpoint":
        """The endpoint that this gateway will have; a wildcard address is reached by loopback."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(gateway.host, gateway.host)
        bracketed = f"[{host}]" if ":" in host else host
        return cls(
            url=f"http://{bracketed}:{gateway.port}",
            model_name=gateway.served_model_name or model_name,
            api_key=gateway.api_keys[0] if gateway.api_keys else "",
        )

    def is_healthy(self) -> bool:
        """Whether /health answers 200 now."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def warm_up(self, *, timeout_s: float) -> None:
        """Have one token computed by the same way as a client's; raises OSError if that fails."""
        body = {"model": self.model_name, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        request = urllib.request.Request(
            f"{self.url}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **self._authorization()},
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            answer.read()

    def curl(self) -> str:
        """A command that asks the model something, in one line to paste."""
        message = {"role": "user", "content": _QUESTION}
        body = json.dumps({"model": self.model_name, "messages": [message], "temperature": 0})
        key = "-H 'Authorization: Bearer '\"$PAGODA_API_KEY\" " if self.api_key else ""
        return (
            f"curl {self.url}/v1/chat/completions -H 'Content-Type: application/json' {key}"
            f"-d '{body}'"
        )

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


def check_address_is_free(gateway: GatewayConfig) -> None:
    """Raises SettingError if nobody can listen there now; the port is what people get wrong."""
    try:
        found = socket.getaddrinfo(gateway.host, gateway.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise SettingError(f"host={gateway.host}: no such address ({error.strerror})") from error
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            raise SettingError(
                f"port={gateway.port}: cannot listen on {gateway.host} ({error.strerror}); "
                "choose another with --port"
            ) from error


def wait_until(
    is_so: Callable[[], bool],
    *,
    timeout_s: float,
    pause_s: float = 0.1,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Ask again and again; False if it was not so within `timeout_s`."""
    deadline = clock() + timeout_s
    while not is_so():
        if clock() > deadline:
            return False
        sleep(pause_s)
    return True
