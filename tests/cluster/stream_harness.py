"""Both ends of a token stream in one process, and a wire between them that can be cut."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from cluster.streams.stream_codec import (
    EngineReport,
    Heartbeat,
    StepMessage,
)
from cluster.streams.token_stream_client import StreamTarget, TokenStreamClient
from cluster.streams.token_stream_server import StreamBinding, StreamCallbacks, TokenStreamServer
from replicas.request import EngineRequest, TokenEntry
from router.prefixes.kv_events import KvSnapshot
from tests.cluster.replica_harness import SECRET

REPORT = EngineReport()
SNAPSHOT = (
    KvSnapshot(1, 7, (b"a" * 32, b"b" * 32), is_last=False),
    KvSnapshot(1, 7, (b"c" * 32,), is_first=False),
)


@dataclass
class Ear:
    """Writes down what a stream says."""

    steps: list[StepMessage] = field(default_factory=list)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def on_open(self) -> None:
        self.events.append("open")

    def on_step(self, step: StepMessage) -> None:
        self.steps.append(step)

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        self.heartbeats.append(heartbeat)

    def on_break(self) -> None:
        self.events.append("break")

    def on_lost(self, reason: str) -> None:
        self.events.append("lost")

    def token_ids(self) -> list[int]:
        return [token for step in self.steps for entry in step.entries for token in entry.token_ids]


@dataclass
class Side:
    """The replica's side, with what it was told."""

    server: TokenStreamServer
    port: int
    finished: list[tuple[str, int, int]]
    lost: list[str]
    expected: list[tuple[str, EngineRequest]]
    forgotten: list[str]
    position: int = 0

    def say(self, *token_ids: int, gateway: str = "g") -> None:
        entry = TokenEntry("r", 0, 0, self.position, token_ids=token_ids)
        self.position += len(token_ids)
        self.server.publish({gateway: [entry]}, REPORT)


@asynccontextmanager
async def a_side(incarnation: str = "one", **binding: object) -> AsyncIterator[Side]:
    finished: list[tuple[str, int, int]] = []
    lost: list[str] = []
    expected: list[tuple[str, EngineRequest]] = []
    forgotten: list[str] = []
    server = TokenStreamServer(
        replica_id="a",
        incarnation=incarnation,
        binding=StreamBinding(
            "127.0.0.1", SECRET, **{"heartbeat_interval_s": 0.02, "gateway_grace_s": 0.5, **binding}
        ),
        callbacks=StreamCallbacks(
            heartbeat=lambda: Heartbeat(0.0, False, True, REPORT),
            on_finish_choice=lambda *what: finished.append(what),
            on_gateway_lost=lost.append,
            on_watch=lambda seconds: None,
            on_expect_handoff=lambda gateway_id, request: expected.append((gateway_id, request)),
            on_forget_handoff=forgotten.append,
            kv_snapshot=lambda: SNAPSHOT,
        ),
    )
    port = await server.start()
    try:
        yield Side(server, port, finished, lost, expected, forgotten)
    finally:
        await server.close("test over")


@asynccontextmanager
async def a_client(
    port: int, ear: Ear, *, secret: str = SECRET, gateway_id: str = "g", resume_timeout_s: float = 1
) -> AsyncIterator[TokenStreamClient]:
    target = StreamTarget(f"127.0.0.1:{port}", gateway_id, secret, resume_timeout_s)
    client = TokenStreamClient(target, listener=ear, clock=time.monotonic)
    client.start()
    try:
        yield client
    finally:
        await client.close()


class Wire:
    """A TCP connection in between, which can be cut, and refuse to come back for a while."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self._pumps: set[asyncio.Task[None]] = set()
        self.is_up = True

    @asynccontextmanager
    async def open(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            self.cut()
            server.close()
            await server.wait_closed()
            await asyncio.gather(*self._pumps)

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_up:
            writer.transport.abort()
            return
        back, forth = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, forth]
        for source, sink in ((reader, forth), (back, writer)):
            pump = asyncio.create_task(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.transport.abort()


def heard(ear: Ear, *events: str) -> Callable[[], bool]:
    return lambda: ear.events == list(events)
