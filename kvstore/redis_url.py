"""Reads the URL that says where Redis is, in every form in which people run it.

    redis://user:password@host:6379/0            one server
    unix://user:password@/run/valkey.sock?db=0   one server on this machine
    redis+sentinel://host:26379,host2/service/0  whichever server Sentinel calls the master
    redis+cluster://host:6379,host2              slots over several servers

rediss:// (and rediss+sentinel://, rediss+cluster://) is the same over TLS. A user and a password
may stand in any of them, %-encoded where they hold reserved characters. Sentinels that ask for a
password get the one of ?sentinel_password=.
"""

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qs, unquote

Topology = Literal["single", "sentinel", "cluster"]
Address = tuple[str, int]

_SCHEMES: dict[str, tuple[Topology, bool]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "unix": ("single", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_PORTS: dict[Topology, int] = {"single": 6379, "sentinel": 26379, "cluster": 6379}
_OPTIONS = {"db", "sentinel_username", "sentinel_password"}


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """What a URL says. addresses: of the servers or sentinels; empty with a unix_path."""

    topology: Topology = "single"
    addresses: tuple[Address, ...] = ()
    unix_path: str = ""
    is_tls: bool = False
    db: int = 0
    service: str = ""
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    sentinel_username: str = field(default="", repr=False)
    sentinel_password: str = field(default="", repr=False)


def parse_redis_url(url: str) -> RedisTarget:
    """Raises ValueError, which names what is wrong and never a password."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        forms = ", ".join(f"{name}://" for name in _SCHEMES)
        raise ValueError(f"redis_url={scheme if separator else '...'}:...: expected one of {forms}")
    topology, is_tls = _SCHEMES[scheme]
    rest, _, query = rest.partition("?")
    options = _options(query)
    login, _, place = rest.rpartition("@")
    username, _, password = login.partition(":")
    hosts, _, path = place.partition("/")
    if scheme == "unix":
        if hosts or not path:
            raise ValueError(
                "redis_url=unix://...: expected a path such as unix:///run/valkey.sock"
            )
        addresses: tuple[Address, ...] = ()
        service, db = "", _db(options.get("db", "0"))
    else:
        addresses = tuple(_address(host, _PORTS[topology]) for host in hosts.split(","))
        service, db = _service_and_db(topology, path, options)
    if topology == "single" and len(addresses) > 1:
        raise ValueError(
            f"redis_url={hosts}: several hosts need redis+sentinel:// or redis+cluster://"
        )
    return RedisTarget(
        topology=topology,
        addresses=addresses,
        unix_path=f"/{unquote(path)}" if scheme == "unix" else "",
        is_tls=is_tls,
        db=db,
        service=service,
        username=unquote(username),
        password=unquote(password),
        sentinel_username=options.get("sentinel_username", ""),
        sentinel_password=options.get("sentinel_password", ""),
    )


def without_secrets(url: str) -> str:
    """The URL as it may stand in a log: no user, no password, no query."""
    scheme, _, rest = url.partition("://")
    before_query, question, query = rest.partition("?")
    # With an @ after a ? nobody can tell what is a password and what is a host.
    place = "..." if question and "@" in query else before_query.rpartition("@")[2]
    return f"{scheme}://{place}"


def _options(query: str) -> dict[str, str]:
    options = {name: values[-1] for name, values in parse_qs(query).items()}
    unknown = set(options) - _OPTIONS
    if unknown:
        raise ValueError(f"redis_url: option {min(unknown)} is not one of {sorted(_OPTIONS)}")
    return options


def _service_and_db(topology: Topology, path: str, options: dict[str, str]) -> tuple[str, int]:
    words = [unquote(word) for word in path.split("/") if word]
    service = ""
    if topology == "sentinel":
        if not words:
            raise ValueError("redis_url: expected the service's name, as in .../mymaster")
        service = words.pop(0)
    if len(words) > 1:
        raise ValueError(f"redis_url: /{'/'.join(words)}: expected a database's number")
    db = _db(words[0] if words else options.get("db", "0"))
    if topology == "cluster" and db:
        raise ValueError(f"redis_url: db={db}: a cluster has database 0 only")
    return service, db


def _db(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"redis_url: db={text}: expected a database's number")
    return int(text)


def _address(text: str, default_port: int) -> Address:
    host, separator, port = text.rpartition(":")
    if not separator or text.endswith("]"):
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"redis_url: {text!r}: expected host or host:port")
    return host, int(port)
