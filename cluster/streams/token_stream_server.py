"""The replica's end of the token plane: every gateway gets its own tokens on one stream.

One message per engine step and gateway (DESIGN 2.4). Writing to a slow gateway waits in that
gateway's own task, and meanwhile its steps are merged in its outbox, so neither the engine nor
another gateway is held up.
"""

import asyncio
import hmac
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import grpc

from cluster.metrics.metric_report import MAX_REPORT_BYTES, MetricReport, encode_metric_report
from cluster.peer_tls import PeerTls, open_port
from cluster.streams.gateway_session import GatewaySession
from cluster.streams.stream_codec import (
    METHOD,
    PROTOCOL_VERSION,
    SECRET_METADATA_KEY,
    SERVICE,
    EngineReport,
    Heartbeat,
    KvEventBatch,
    decode_expected_handoff,
    encode_heartbeat,
)
from cluster.wire import token_stream_pb2 as wire
from replicas.engine_view import EngineView
from replicas.request import EngineRequest, TokenEntry
from router.prefixes.kv_events import KvSnapshot

log = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 5.0
STOP_GRACE_S = 1.0
# A gateway that forgot to stop watching is not paid for much longer.
MAX_WATCH_S = 60.0


@dataclass(frozen=True, slots=True)
class StreamBinding:
    """Where a replica's token stream listens and whom it takes.

    port 0 takes any free one. secret: the cluster's; a peer without it is turned away.
    gateway_grace_s: how long a gateway whose stream broke may stay away before its requests end.
    tls: without it the stream is in clear, which suits one host.
    """

    host: str
    secret: str
    port: int = 0
    heartbeat_interval_s: float = 0.1
    gateway_grace_s: float = 3.0
    max_message_bytes: int = 16 * 1024 * 1024
    tls: PeerTls | None = None


@dataclass(frozen=True, slots=True)
class StreamCallbacks:
    """What the server asks of the replica and tells it, always on the event loop.

    heartbeat: the replica's state now. on_finish_choice: request id, attempt, choice.
    on_gateway_lost: a gateway stayed away; whatever it has open should end.
    on_watch: somebody watches at a gateway, for so many seconds from now on.
    kv_snapshot: all that the prefix cache can find now. on_expect_handoff: a gateway will have a
    request handed over to this replica. on_forget_handoff: the request of that id will not come.
    """

    heartbeat: Callable[[], Heartbeat]
    on_finish_choice: Callable[[str, int, int], None]
    on_gateway_lost: Callable[[str], None]
    on_watch: Callable[[float], None]
    kv_snapshot: Callable[[], tuple[KvSnapshot, ...]]
    on_expect_handoff: Callable[[str, EngineRequest], None]
    on_forget_handoff: Callable[[str], None]


class TokenStreamServer:
    """Serves the token stream of one replica process.

    incarnation: unique to this process, so that a gateway never resumes from another's numbers.
    """

    def __init__(
        self,
        *,
        replica_id: str,
        incarnation: str,
        binding: StreamBinding,
        callbacks: StreamCallbacks,
    ) -> None:
        self._replica_id = replica_id
        self._incarnation = incarnation
        self._binding = binding
        self._callbacks = callbacks
        self._sessions: dict[str, GatewaySession] = {}
        self._own_metrics: wire.MetricReport | None = None
        self._num_coalesced_before = 0
        self._goodbye: str | None = None
        self._server: grpc.aio.Server | None = None
        self._beats: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listen; returns the port."""
        server = grpc.aio.server(options=_limits(self._binding.max_message_bytes))
        handler = grpc.stream_stream_rpc_method_handler(
            self._attach, request_deserializer=wire.GatewayMessage.FromString
        )
        name = METHOD.rpartition("/")[2]
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {name: handler}),)
        )
        address = f"{self._binding.host}:{self._binding.port}"
        port = open_port(server, address, self._binding.tls)
        await server.start()
        self._server = server
        self._beats = asyncio.create_task(self._beat_on())
        log.info("token stream listening host=%s port=%d", self._binding.host, port)
        return port

    def has_gateway(self, gateway_id: str) -> bool:
        """Whether tokens for that gateway would arrive, or may soon again."""
        return gateway_id in self._sessions

    @property
    def gateways(self) -> frozenset[str]:
        """Every gateway that is attached, or was a moment ago."""
        return frozenset(self._sessions)

    def publish(
        self,
        entries: Mapping[str, Iterable[TokenEntry]],
        report: EngineReport,
        kv: KvEventBatch | None = None,
        view: EngineView | None = None,
    ) -> None:
        """Give every gateway its entries of one step, and all of them the report.

        KV events go to those that asked for a snapshot once, from then on. A view goes to those
        gateways only where somebody watches.
        """
        for session in self._sessions.values():
            own = tuple(entries.get(session.gateway_id, ()))
            seen = view if view is not None and session.is_watching else None
            heard = kv if session.hears_kv_events else None
            session.outbox.add_step(own, report, heard, seen)
            session.wake.set()

    @property
    def num_coalesced_steps(self) -> int:
        """Steps that were joined with one that a gateway had not taken yet."""
        now = sum(session.outbox.num_coalesced_steps for session in self._sessions.values())
        return self._num_coalesced_before + now

    def publish_metrics(self, report: MetricReport) -> None:
        """Let every gateway have this replica's figures with its next heartbeat."""
        self._own_metrics = encode_metric_report(report)
        for session in self._sessions.values():
            session.outbox.add_metric_report(self._replica_id, self._own_metrics)

    def beat(self) -> None:
        """Send every gateway a heartbeat now: the replica's state has just changed."""
        heartbeat = self._callbacks.heartbeat()
        for session in self._sessions.values():
            session.outbox.add_heartbeat(heartbeat)
            session.wake.set()

    async def close(self, reason: str) -> None:
        """Say goodbye to every gateway and stop listening."""
        self._goodbye = reason
        if self._beats is not None:
            self._beats.cancel()
            with suppress(asyncio.CancelledError):
                await self._beats
        for session in list(self._sessions.values()):
            session.wake.set()
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    async def _beat_on(self) -> None:
        while True:
            self.beat()
            await asyncio.sleep(self._binding.heartbeat_interval_s)

    async def _attach(self, _: object, context: "grpc.aio.ServicerContext") -> None:
        """One stream from its first message to its end."""
        hello = await self._greet(context)
        session, resumed = self._session_for(hello)
        visit = session.attach()
        log.info("gateway attached gateway=%s resumed=%s", hello.gateway_id, resumed)
        reader = asyncio.create_task(self._read(context, session))
        try:
            await context.write(self._welcome(resumed))
            await context.write(encode_heartbeat(self._callbacks.heartbeat()).SerializeToString())
            await self._write(context, session, visit)
        finally:
            session.detach(visit)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _greet(self, context: "grpc.aio.ServicerContext") -> wire.Hello:
        """Check secret, first message and version; aborts the stream otherwise."""
        offered = dict(context.invocation_metadata()).get(SECRET_METADATA_KEY, "")
        if not hmac.compare_digest(str(offered).encode(), self._binding.secret.encode()):
            log.warning("peer without the secret turned away peer=%s", context.peer())
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong cluster secret")
        try:
            first = await asyncio.wait_for(context.read(), HELLO_TIMEOUT_S)
        except TimeoutError:
            first = grpc.aio.EOF
        if first is grpc.aio.EOF or first.WhichOneof("kind") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected Hello first")
        hello: wire.Hello = first.hello
        if hello.protocol_version != PROTOCOL_VERSION:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"protocol_version={hello.protocol_version}: expected {PROTOCOL_VERSION}",
            )
        return hello

    def _session_for(self, hello: wire.Hello) -> tuple[GatewaySession, bool]:
        """The gateway's session, and whether it goes on without a gap."""
        session = self._sessions.get(hello.gateway_id)
        if session is not None:
            if hello.incarnation == self._incarnation and session.outbox.rewind(
                hello.last_sequence
            ):
                return session, True
            self._lose(hello.gateway_id)
        session = GatewaySession(
            hello.gateway_id, grace_s=self._binding.gateway_grace_s, on_lost=self._lose
        )
        self._bring_up_to_date(session)
        self._sessions[hello.gateway_id] = session
        return session, False

    def _bring_up_to_date(self, session: GatewaySession) -> None:
        known = {other.gateway_id: other.metric_report for other in self._sessions.values()}
        known[self._replica_id] = self._own_metrics
        for source, report in known.items():
            if report is not None:
                session.outbox.add_metric_report(source, report)

    def _lose(self, gateway_id: str) -> None:
        session = self._sessions.pop(gateway_id, None)
        if session is not None:
            self._num_coalesced_before += session.outbox.num_coalesced_steps
            session.close()
            log.info("gateway lost gateway=%s", gateway_id)
            self._callbacks.on_gateway_lost(gateway_id)

    def _pass_on(self, session: GatewaySession, report: wire.MetricReport) -> None:
        """A gateway's own figures are shown by the others too: any of them may be scraped."""
        # Nobody may speak for another gateway, or for a replica.
        is_own = report.origin == "gateway" and list(report.identity[:1]) == [session.gateway_id]
        if not is_own or report.ByteSize() > MAX_REPORT_BYTES:
            log.warning(
                "metric report dropped gateway=%s bytes=%d", session.gateway_id, report.ByteSize()
            )
            return
        session.metric_report = report
        for other in self._sessions.values():
            if other is not session:
                other.outbox.add_metric_report(session.gateway_id, report)

    def _welcome(self, resumed: bool) -> bytes:
        return wire.ReplicaMessage(
            welcome=wire.Welcome(
                protocol_version=PROTOCOL_VERSION,
                replica_id=self._replica_id,
                incarnation=self._incarnation,
                resumed=resumed,
            )
        ).SerializeToString()

    async def _write(
        self, context: "grpc.aio.ServicerContext", session: GatewaySession, visit: int
    ) -> None:
        while session.is_current(visit):
            message = session.outbox.take()
            if message is not None:
                await context.write(message)
            elif self._goodbye is not None:
                goodbye = wire.ReplicaMessage(goodbye=wire.Goodbye(reason=self._goodbye))
                await context.write(goodbye.SerializeToString())
                return
            else:
                session.wake.clear()
                await session.wake.wait()

    async def _read(self, context: "grpc.aio.ServicerContext", session: GatewaySession) -> None:
        while True:
            message = await context.read()
            if message is grpc.aio.EOF:
                return
            kind = message.WhichOneof("kind")
            if kind == "watch":
                self._watch(session, message.watch.seconds)
            elif kind == "finish_choice":
                finish = message.finish_choice
                self._callbacks.on_finish_choice(finish.request_id, finish.attempt, finish.choice)
            elif kind == "metric_report":
                self._pass_on(session, message.metric_report)
            elif kind == "ask_kv_snapshot":
                self._send_kv_snapshot(session)
            elif kind == "expect_handoff":
                self._expect_handoff(session, message.expect_handoff)
            elif kind == "forget_handoff":
                self._callbacks.on_forget_handoff(message.forget_handoff.request_id)

    def _send_kv_snapshot(self, session: GatewaySession) -> None:
        session.hears_kv_events = True
        report = self._callbacks.heartbeat().report
        session.outbox.add_kv_snapshot(self._callbacks.kv_snapshot(), report)
        session.wake.set()

    def _expect_handoff(self, session: GatewaySession, message: wire.ExpectHandoff) -> None:
        try:
            request = decode_expected_handoff(message)
        except ValueError as error:
            log.warning("expected handoff makes no sense: %s", error)
            return
        self._callbacks.on_expect_handoff(session.gateway_id, request)

    def _watch(self, session: GatewaySession, seconds: float) -> None:
        bounded_s = min(max(seconds, 0.0), MAX_WATCH_S)
        session.watch(bounded_s)
        self._callbacks.on_watch(bounded_s)


def _limits(max_message_bytes: int) -> tuple[tuple[str, int], ...]:
    return (
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.so_reuseport", 0),
    )
