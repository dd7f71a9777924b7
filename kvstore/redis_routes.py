"""Knows which server holds a key: the only one, Sentinel's master, or the node of a slot."""

import threading
from collections.abc import Callable
from typing import Protocol

from kvstore.errors import StoreUnavailable
from kvstore.redis_store import Dialer, Link, TlsFiles, slot_of
from kvstore.redis_url import Address, parse_redis_url
from kvstore.resp_wire import Reply, RespWire, command

Node = Address | None
"""A server; None is the one behind the unix socket, or whoever is the master now."""


class RedisRoutes(Protocol):
    """Safe from any thread. Methods that may ask a server raise StoreUnavailable."""

    def node_of(self, key: bytes, *, timeout_s: float) -> Node:
        """The node that holds a key."""
        ...

    def nodes(self, *, timeout_s: float) -> tuple[Node, ...]:
        """Every node that holds keys."""
        ...

    def dial(self, node: Node, *, timeout_s: float) -> Link:
        """A new connection to a node."""
        ...

    def forget(self) -> None:
        """What was known is out of date: a node said so, or was not there."""
        ...


class OneServer:
    """The same server always."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._node: Node = dialer.target.addresses[0] if dialer.target.addresses else None

    def node_of(self, key: bytes, *, timeout_s: float) -> Node:
        """See RedisRoutes."""
        return self._node

    def nodes(self, *, timeout_s: float) -> tuple[Node, ...]:
        """See RedisRoutes."""
        return (self._node,)

    def dial(self, node: Node, *, timeout_s: float) -> Link:
        """See RedisRoutes."""
        return self._dialer.dial(node, timeout_s=timeout_s)

    def forget(self) -> None:
        """Nothing to forget."""


class SentinelMaster:
    """Whoever the sentinels call the master, asked anew for each connection.

    After a failover, writes that the old master acknowledged may be gone: they are misses.
    """

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer

    def node_of(self, key: bytes, *, timeout_s: float) -> Node:
        """See RedisRoutes."""
        return None

    def nodes(self, *, timeout_s: float) -> tuple[Node, ...]:
        """See RedisRoutes."""
        return (None,)

    def dial(self, node: Node, *, timeout_s: float) -> Link:
        """See RedisRoutes."""
        master = self._dialer.master(timeout_s=timeout_s)
        return self._dialer.dial(master, timeout_s=timeout_s)

    def forget(self) -> None:
        """Nothing is remembered: a connection that fails is opened anew, to the master by then."""


class ClusterSlots:
    """The nodes of a cluster and the slots that each of them holds."""

    def __init__(self, dialer: Dialer, *, clock: Callable[[], float]) -> None:
        self._dialer = dialer
        self._clock = clock
        self._lock = threading.Lock()
        self._owners: list[Address | None] = []
        self._known: tuple[Address, ...] = dialer.target.addresses

    def node_of(self, key: bytes, *, timeout_s: float) -> Node:
        """See RedisRoutes."""
        owner = self._current(timeout_s)[slot_of(key)]
        if owner is None:
            raise StoreUnavailable("no node holds this slot", kind="busy")
        return owner

    def nodes(self, *, timeout_s: float) -> tuple[Node, ...]:
        """See RedisRoutes."""
        return tuple(sorted({owner for owner in self._current(timeout_s) if owner is not None}))

    def dial(self, node: Node, *, timeout_s: float) -> Link:
        """See RedisRoutes."""
        return self._dialer.dial(node, timeout_s=timeout_s)

    def forget(self) -> None:
        """See RedisRoutes."""
        with self._lock:
            self._owners = []

    def _current(self, timeout_s: float) -> list[Address | None]:
        with self._lock:
            if not self._owners:
                self._owners = self._ask_nodes(timeout_s)
            return self._owners

    def _ask_nodes(self, timeout_s: float) -> list[Address | None]:
        deadline = self._clock() + timeout_s
        error = StoreUnavailable("no node of the cluster answers")
        for address in dict.fromkeys((*self._known, *self._dialer.target.addresses)):
            try:
                owners = self._ask_node(address, deadline)
            except (StoreUnavailable, OSError) as failure:
                error = StoreUnavailable(f"{address[0]}:{address[1]}: {failure}")
                continue
            self._known = tuple(sorted({owner for owner in owners if owner is not None}))
            return owners
        raise error

    def _ask_node(self, address: Address, deadline: float) -> list[Address | None]:
        seconds_left = deadline - self._clock()
        if seconds_left <= 0:
            raise TimeoutError("no time left")
        link = self._dialer.dial(address, timeout_s=seconds_left)
        try:
            wire = RespWire(link.socket, clock=self._clock)
            wire.send(command("CLUSTER", "SLOTS"), deadline=deadline)
            return _owners(wire.read(deadline=deadline), asked=address)
        finally:
            link.close()


def routes_to(url: str, *, tls: TlsFiles, clock: Callable[[], float]) -> RedisRoutes:
    """The routes of a URL; raises ValueError if it cannot be read. Asks no server."""
    target = parse_redis_url(url)
    dialer = Dialer(target, tls=tls)
    if target.topology == "cluster":
        return ClusterSlots(dialer, clock=clock)
    if target.topology == "sentinel":
        return SentinelMaster(dialer)
    return OneServer(dialer)


def _owners(slots: Reply, *, asked: Address) -> list[Address | None]:
    """Owner of each of the 16,384 slots, from [[first, last, [host, port, ...], ...], ...]."""
    owners: list[Address | None] = [None] * 16384
    if not isinstance(slots, list) or not slots:
        raise StoreUnavailable(f"no cluster ({slots!r})", kind="busy")
    for entry in slots:
        match entry:
            case [int(first), int(last), [host, int(port), *_], *_]:
                # A node that does not know its own address leaves the host empty.
                name = bytes(host).decode() if isinstance(host, bytes) and host else asked[0]
                owners[first : last + 1] = [(name, port)] * (last + 1 - first)
            case _:
                raise StoreUnavailable(f"CLUSTER SLOTS: {entry!r}", kind="protocol")
    return owners
