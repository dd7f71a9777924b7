"""Opens connections to Redis or Valkey servers; the one file that imports `redis`.

The library does what it does best: TLS, users and passwords, the greeting, asking Sentinel. What
then goes over the connection is RespWire's, whose calls have a deadline (resp_wire.py says why).
"""

import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import redis
from redis import connection as redis_connection
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from kvstore.errors import FailureKind, StoreUnavailable
from kvstore.redis_url import Address, RedisTarget, parse_redis_url, without_secrets
from kvstore.resp_wire import Reply, RespError, RespWire, command

__all__ = ["Dialer", "Link", "ServerInfo", "TlsFiles", "server_info", "slot_of", "without_secrets"]

# The library's annotations cover its clients, and not what lies under them.
AnyConnection = Any
_open: Any = redis_connection
_open_sentinel: Any = Sentinel

DEFAULT_MAX_BULK_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths for TLS: who signed the server's certificate, and our own certificate and key."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says of itself. `max_memory_bytes` 0 means that it has no limit.

    max_bulk_bytes: its proto-max-bulk-len, the largest value that it takes; where it does not say
    (managed servers hide CONFIG), the default.
    """

    name: str
    version: str
    max_memory_bytes: int
    max_memory_policy: str
    max_bulk_bytes: int = DEFAULT_MAX_BULK_BYTES

    @property
    def can_drop_pinned(self) -> bool:
        """Whether the server, once full, chooses among all blocks, and does not know of pins.

        Each allkeys policy may take any key, each volatile one any key with a TTL, which blocks
        have. noeviction takes none: then we trim, and pins hold.
        """
        return self.max_memory_bytes > 0 and self.max_memory_policy != "noeviction"

    def warnings(self) -> tuple[str, ...]:
        """Why this server, set up as it is, will not serve well as a cache of blocks."""
        if self.max_memory_bytes == 0:
            return ("maxmemory is 0: blocks will fill the machine's memory; set a limit",)
        if self.max_memory_policy == "noeviction":
            return (
                "maxmemory-policy is noeviction: once full, the server refuses new blocks until "
                "a replica has trimmed old ones; set allkeys-lru unless pinned blocks matter more",
            )
        return ()

    def pin_warnings(self) -> tuple[str, ...]:
        """Why a pin may not hold on this server."""
        if not self.can_drop_pinned:
            return ()
        return (
            f"maxmemory-policy is {self.max_memory_policy}: once full, the server may drop pinned "
            "blocks too, which then are computed again; noeviction keeps them",
        )


class Link:
    """One open connection, authenticated, with nothing on its way."""

    def __init__(self, connection: AnyConnection) -> None:
        self._connection = connection
        # The library keeps its socket to itself; its version is pinned for this line's sake.
        self.socket: socket.socket = connection._sock

    def close(self) -> None:
        """Hang up."""
        self._connection.disconnect()


class Dialer:
    """Opens links to the servers of one target."""

    def __init__(self, target: RedisTarget, *, tls: TlsFiles) -> None:
        self.target = target
        self._tls = tls

    def dial(self, address: Address | None, *, timeout_s: float) -> Link:
        """A link to one server; None means the target's unix socket. Raises StoreUnavailable."""
        connection = self._connection(address, timeout_s)
        try:
            connection.connect()
        except (redis.RedisError, OSError) as error:
            connection.disconnect()
            raise _unavailable(error) from error
        return Link(connection)

    def master(self, *, timeout_s: float) -> Address:
        """Whom the sentinels call the service's master now; raises StoreUnavailable."""
        sentinel = _open_sentinel(
            self.target.addresses,
            sentinel_kwargs={
                **self._shared(timeout_s),
                **(self._tls_options() | {"ssl": True} if self.target.is_tls else {}),
                "username": self.target.sentinel_username or None,
                "password": self.target.sentinel_password or None,
            },
        )
        try:
            host, port = sentinel.discover_master(self.target.service)
        except MasterNotFoundError as error:
            raise StoreUnavailable(
                f"no sentinel knows a live master of {self.target.service}"
            ) from error
        except (redis.RedisError, OSError) as error:
            raise _unavailable(error) from error
        finally:
            for client in sentinel.sentinels:
                client.close()
        return (host.decode() if isinstance(host, bytes) else str(host), int(port))

    def _connection(self, address: Address | None, timeout_s: float) -> AnyConnection:
        options: dict[str, Any] = {
            **self._shared(timeout_s),
            "db": self.target.db,
            "username": self.target.username or None,
            "password": self.target.password or None,
            "client_name": "pagoda",
        }
        if address is None:
            return _open.UnixDomainSocketConnection(path=self.target.unix_path, **options)
        options |= {"host": address[0], "port": address[1], "socket_keepalive": True}
        if self.target.is_tls:
            return _open.SSLConnection(**options, **self._tls_options())
        return _open.Connection(**options)

    def _shared(self, timeout_s: float) -> dict[str, Any]:
        return {
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            # The caller knows whether another try is worth having.
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        }

    def _tls_options(self) -> dict[str, Any]:
        return {
            "ssl_ca_certs": self._tls.ca_file or None,
            "ssl_certfile": self._tls.cert_file or None,
            "ssl_keyfile": self._tls.key_file or None,
        }


def server_info(
    url: str,
    *,
    timeout_s: float,
    tls: TlsFiles | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ServerInfo:
    """Ask a server who it is; raises StoreUnavailable, which says what is wrong.

    Behind Sentinel that is the master; of a cluster, the first node that answers.
    """
    try:
        target = parse_redis_url(url)
    except ValueError as error:
        raise StoreUnavailable(str(error), kind="refused") from error
    dialer = Dialer(target, tls=tls or TlsFiles())
    errors: list[StoreUnavailable] = []
    for address in _first_addresses(dialer, timeout_s):
        try:
            return _ask(dialer.dial(address, timeout_s=timeout_s), clock() + timeout_s, clock)
        except StoreUnavailable as error:
            errors.append(error)
    raise StoreUnavailable(f"{without_secrets(url)}: {errors[-1]}", kind=errors[-1].kind)


def slot_of(key: bytes) -> int:
    """The cluster slot of a key (CRC-16 of what its braces hold)."""
    return int(key_slot(key))


def _first_addresses(dialer: Dialer, timeout_s: float) -> tuple[Address | None, ...]:
    if dialer.target.topology == "sentinel":
        return (dialer.master(timeout_s=timeout_s),)
    return dialer.target.addresses or (None,)


def _ask(link: Link, deadline: float, clock: Callable[[], float]) -> ServerInfo:
    wire = RespWire(link.socket, clock=clock)
    questions = (("INFO", "server"), ("INFO", "memory"), ("CONFIG", "GET", "proto-max-bulk-len"))
    try:
        wire.send([part for words in questions for part in command(*words)], deadline=deadline)
        server, memory, limit = [wire.read(deadline=deadline) for _ in questions]
    except OSError as error:
        raise _unavailable(error) from error
    finally:
        link.close()
    fields = _fields(server) | _fields(memory)
    is_valkey = "valkey_version" in fields
    return ServerInfo(
        name="Valkey" if is_valkey else "Redis",
        version=fields.get("valkey_version" if is_valkey else "redis_version", "unknown"),
        max_memory_bytes=int(fields.get("maxmemory", 0)),
        max_memory_policy=fields.get("maxmemory_policy", ""),
        max_bulk_bytes=_max_bulk_bytes(limit),
    )


def _fields(info: Reply) -> dict[str, str]:
    if isinstance(info, RespError):
        kind: FailureKind = "busy" if info.code == "LOADING" else "refused"
        raise StoreUnavailable(info.message, kind=kind)
    if not isinstance(info, bytes | memoryview):
        raise StoreUnavailable(f"INFO answered {type(info).__name__}", kind="protocol")
    lines = bytes(info).decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _max_bulk_bytes(limit: Reply) -> int:
    number = limit[-1] if isinstance(limit, list) and len(limit) == 2 else None
    return int(number) if isinstance(number, bytes) else DEFAULT_MAX_BULK_BYTES


def _unavailable(error: redis.RedisError | OSError) -> StoreUnavailable:
    message, kind = _in_words(error)
    return StoreUnavailable(message, kind=kind)


def _in_words(error: redis.RedisError | OSError) -> tuple[str, FailureKind]:
    if isinstance(error, redis.AuthenticationError):
        return f"the server refuses this user or password ({error})", "refused"
    if isinstance(error, redis.exceptions.NoPermissionError):
        return f"the user lacks a permission ({error})", "refused"
    if isinstance(error, redis.BusyLoadingError):
        return "the server is loading its data", "busy"
    if isinstance(error, redis.TimeoutError | TimeoutError):
        return "no answer in time", "timeout"
    if isinstance(error, redis.InvalidResponse):
        return "what answers there does not speak the Redis protocol", "protocol"
    return str(error) or type(error).__name__, "connection"


class LibraryPipeline:
    """The library's own pipeline, which `python -m kvstore.bench` holds ours against."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, protocol=2)

    def run(self, verb: str, arguments: Iterable[tuple[bytes, ...]]) -> None:
        """One command each, all in one pipeline; raises if one is refused."""
        pipeline: Any = self._client.pipeline(transaction=False)
        for words in arguments:
            pipeline.execute_command(verb, *words)
        pipeline.execute()

    def close(self) -> None:
        """Hang up."""
        self._client.close()
