"""Carries commands to Redis over several connections, a thread each, and never beyond a deadline.

Threads and not an event loop: the loop of the process carries token streams, and moving a block
through it holds them up; a thread that sends, receives or checksums holds no GIL. SET/GET of 2 MiB
over TCP on two shared cores, MiB/s: redis-py's asyncio client 356/565 beside its plain one with
558/516; these lanes 1,186/1,146 beside the plain one with 483/527 (`python -m kvstore.bench`).

A caller waits for its deadline at most: what has not been answered by then is left to its lane,
which hangs up at the same moment. Reads go before writes. What is on its way is bounded: a lane has
one chunk of chunk_bytes in hand, and the rest waits in its callers' own buffers.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvstore.block_store import Buffer
from kvstore.errors import FailureKind, StoreUnavailable
from kvstore.redis_routes import Node, RedisRoutes
from kvstore.redis_store import Link
from kvstore.resp_wire import Reply, RespError, RespWire

log = logging.getLogger(__name__)
T = TypeVar("T")

_MOST_COMMANDS = 256
_ERROR_KINDS: dict[str, FailureKind] = {
    "MOVED": "moved",
    "ASK": "moved",
    "READONLY": "moved",
    "OOM": "full",
    "NOAUTH": "refused",
    "NOPERM": "refused",
    "WRONGPASS": "refused",
    "LOADING": "busy",
    "BUSY": "busy",
    "MASTERDOWN": "busy",
    "CLUSTERDOWN": "busy",
    "TRYAGAIN": "busy",
}


@dataclass(frozen=True, slots=True)
class Command:
    """One command, or several on one key. parts: makes the bytes, when and where they are sent.

    key: decides the node, unless `node` names one. num_replies: how many answers come; the first
    error counts, or else the last one.
    """

    key: bytes
    parts: Callable[[], Sequence[Buffer]]
    node: tuple[Node] | None = None
    num_replies: int = 1


@dataclass(frozen=True, slots=True)
class Exchanged(Generic[T]):
    """replies: what `use` made of each reply, None where none came. was_sent: whether the server
    may have seen the command. failure: why replies are missing.
    """

    replies: tuple[T | None, ...]
    was_sent: tuple[bool, ...]
    failure: StoreUnavailable | None


class _Call(Generic[T]):
    """One caller's commands, and what is known of them so far."""

    def __init__(
        self, commands: Sequence[Command], use: Callable[[int, Reply], T], deadline: float
    ) -> None:
        self.commands = commands
        self.use = use
        self.deadline = deadline
        self.replies: list[T | None] = [None] * len(commands)
        self.was_sent = [False] * len(commands)
        self.failure: StoreUnavailable | None = None
        self.is_over = threading.Event()
        self._lock = threading.Lock()
        self._num_left = len(commands)

    def fail(self, failure: StoreUnavailable) -> None:
        """Give up on the rest: it would only fail the same way."""
        self.failure = self.failure or failure
        self.is_over.set()

    def end(self, num_commands: int) -> None:
        with self._lock:
            self._num_left -= num_commands
            if self._num_left == 0:
                self.is_over.set()


class RedisLanes:
    """A fixed number of connections to each node, opened when first needed; safe from any thread.

    chunk_bytes: most bytes that one lane has on its way.
    """

    def __init__(
        self, routes: RedisRoutes, *, num_lanes: int, chunk_bytes: int, clock: Callable[[], float]
    ) -> None:
        self.routes = routes
        self._chunk_bytes = chunk_bytes
        self._clock = clock
        self._has_news = threading.Condition()
        self._reads: deque[tuple[_Call[object], range]] = deque()
        self._writes: deque[tuple[_Call[object], range]] = deque()
        self._is_closing = False
        self._threads = [
            threading.Thread(target=self._work, name=f"store-lane-{number}", daemon=True)
            for number in range(num_lanes)
        ]
        for thread in self._threads:
            thread.start()

    def exchange(
        self,
        commands: Sequence[Command],
        use: Callable[[int, Reply], T],
        *,
        timeout_s: float,
        bytes_each: int = 0,
        is_write: bool = False,
    ) -> Exchanged[T]:
        """Send commands, in order within a chunk, and hand each reply to `use` in its lane.

        bytes_each: of a command or its reply, whichever carries the block.
        """
        if not commands:
            return Exchanged((), (), None)
        call = _Call(commands, use, self._clock() + timeout_s)
        size = min(_MOST_COMMANDS, max(1, self._chunk_bytes // max(1, bytes_each)))
        # Every lane should have a share of a small call too.
        size = min(size, -(-len(commands) // len(self._threads))) if bytes_each else size
        starts = range(0, len(commands), size)
        chunks = [range(start, min(start + size, len(commands))) for start in starts]
        with self._has_news:
            if self._is_closing:
                raise StoreUnavailable("the store is closed")
            line = self._writes if is_write else self._reads
            line.extend((call, chunk) for chunk in chunks)  # type: ignore[misc]
            self._has_news.notify(len(chunks))
        if not call.is_over.wait(timeout_s):
            call.fail(StoreUnavailable("no answer in time", kind="timeout"))
        return Exchanged(tuple(call.replies), tuple(call.was_sent), call.failure)

    def close(self) -> None:
        """End the threads and hang up; waits for what is on its way. Safe to call twice."""
        with self._has_news:
            self._is_closing = True
            for call, _ in (*self._reads, *self._writes):
                call.fail(StoreUnavailable("the store is closed"))
            self._has_news.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        lane = _Lane(self.routes, clock=self._clock)
        try:
            while (job := self._next_job()) is not None:
                call, chunk = job
                if not call.is_over.is_set():
                    lane.carry(call, chunk)
                call.end(len(chunk))
        finally:
            lane.hang_up()

    def _next_job(self) -> tuple[_Call[object], range] | None:
        with self._has_news:
            while True:
                if self._is_closing:
                    return None
                if self._reads:
                    return self._reads.popleft()
                if self._writes:
                    return self._writes.popleft()
                self._has_news.wait()


class _Lane:
    """One connection to each node that was needed so far, used by one thread."""

    def __init__(self, routes: RedisRoutes, *, clock: Callable[[], float]) -> None:
        self._routes = routes
        self._clock = clock
        self._links: dict[Node, tuple[Link, RespWire]] = {}

    def carry(self, call: _Call[object], chunk: range) -> None:
        """Exchange one chunk; whatever goes wrong is the call's failure, and no exception."""
        # A connection that was idle may have been cut, and a slot may have moved: once more then.
        # Every command here may be repeated without harm.
        left: Sequence[int] = chunk
        for is_last in (False, True):
            try:
                left = self._exchange(call, left, is_last)
            except StoreUnavailable as failure:
                self.hang_up()
                self._routes.forget()
                if is_last or failure.kind != "connection":
                    return call.fail(failure)
                left = [index for index in left if call.replies[index] is None]
            except BaseException:
                # A bug in `use`: the caller must not wait for a thread that ended.
                self.hang_up()
                call.fail(StoreUnavailable("a reply could not be used", kind="protocol"))
                raise
            if not left or call.is_over.is_set():
                return None
        return None

    def hang_up(self) -> None:
        """Close every connection."""
        for link, _ in self._links.values():
            link.close()
        self._links.clear()

    def _exchange(
        self, call: _Call[object], indexes: Sequence[int], is_last: bool
    ) -> Sequence[int]:
        """Returns the commands to send again, since their key lives elsewhere."""
        try:
            by_node: dict[Node, list[int]] = {}
            for index in indexes:
                node = self._node_of(call.commands[index], call)
                by_node.setdefault(node, []).append(index)
            wires = {node: self._wire(node, call) for node in by_node}
            for node, ours in by_node.items():
                self._send(call, ours, wires[node])
            moved: list[int] = []
            for node, ours in by_node.items():
                moved += self._receive(call, ours, wires[node], is_last)
        except TimeoutError as error:
            raise StoreUnavailable("no answer in time", kind="timeout") from error
        except OSError as error:
            raise StoreUnavailable(str(error) or type(error).__name__) from error
        if moved:
            self.hang_up()
            self._routes.forget()
        return moved

    def _send(self, call: _Call[object], indexes: Sequence[int], wire: RespWire) -> None:
        def buffers() -> Iterator[Buffer]:
            for index in indexes:
                call.was_sent[index] = True
                yield from call.commands[index].parts()

        wire.send(buffers(), deadline=call.deadline)

    def _receive(
        self, call: _Call[object], indexes: Sequence[int], wire: RespWire, is_last: bool
    ) -> list[int]:
        moved = []
        for index in indexes:
            reply = self._reply(wire, call, call.commands[index].num_replies)
            kind = _ERROR_KINDS.get(reply.code) if isinstance(reply, RespError) else None
            if kind == "moved" and not is_last:
                moved.append(index)
            elif kind is not None and kind != "full":
                assert isinstance(reply, RespError)
                call.fail(StoreUnavailable(reply.message, kind=kind))
            else:
                call.replies[index] = call.use(index, reply)
        return moved

    def _reply(self, wire: RespWire, call: _Call[object], num_replies: int) -> Reply:
        """The first error of one command's replies, or else the last of them."""
        chosen: Reply = None
        for _ in range(num_replies):
            reply = wire.read(deadline=call.deadline)
            if not isinstance(chosen, RespError):
                chosen = reply
        return chosen

    def _node_of(self, command: Command, call: _Call[object]) -> Node:
        if command.node is not None:
            return command.node[0]
        return self._routes.node_of(command.key, timeout_s=self._seconds_left(call))

    def _wire(self, node: Node, call: _Call[object]) -> RespWire:
        if node not in self._links:
            link = self._routes.dial(node, timeout_s=self._seconds_left(call))
            self._links[node] = (link, RespWire(link.socket, clock=self._clock))
        return self._links[node][1]

    def _seconds_left(self, call: _Call[object]) -> float:
        seconds = call.deadline - self._clock()
        if seconds <= 0.0:
            raise TimeoutError("no time left")
        return seconds
