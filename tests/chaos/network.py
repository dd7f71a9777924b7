"""A second host on one machine: a network namespace behind a bridge, whose cable can be pulled."""

import shutil
import subprocess
from contextlib import suppress


class NoNamespaces(Exception):
    """This process may not make network namespaces; the message says what refused."""


class FarHost:
    """A namespace with an address of its own; `address` of ours is what it reaches us by."""

    def __init__(self, number: int) -> None:
        self._name = f"pgchaos{number}"
        self._bridge = f"pgbr{number}"
        self._cable = f"pgve{number}"
        self.address = f"10.{77 + number // 250}.{number % 250}.1"
        self.far_address = self.address.removesuffix(".1") + ".2"

    def __enter__(self) -> "FarHost":
        if shutil.which("ip") is None:
            raise NoNamespaces("there is no `ip` command")
        far = ("-n", self._name)
        try:
            _ip("netns", "add", self._name)
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("address", "add", f"{self.address}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            _ip("link", "add", self._cable, "type", "veth", "peer", "eth0", "netns", self._name)
            _ip("link", "set", self._cable, "master", self._bridge, "up")
            _ip(*far, "link", "set", "lo", "up")
            _ip(*far, "address", "add", f"{self.far_address}/24", "dev", "eth0")
            _ip(*far, "link", "set", "eth0", "up")
            _ip(*far, "route", "add", "default", "via", self.address)
        except NoNamespaces:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        for words in (
            ("link", "del", self._cable),
            ("link", "del", self._bridge),
            ("netns", "del", self._name),
        ):
            with suppress(NoNamespaces):  # was not made
                _ip(*words)

    def cut(self) -> None:
        """Pull the cable: what is sent gets lost, and nobody is told."""
        _ip("link", "set", self._cable, "down")

    def mend(self) -> None:
        """Plug it in again."""
        _ip("link", "set", self._cable, "up")

    def command(self, *words: str) -> list[str]:
        """The command that runs `words` there."""
        return ["ip", "netns", "exec", self._name, *words]


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoNamespaces(f"ip {' '.join(words)}: {done.stderr.strip()}")
