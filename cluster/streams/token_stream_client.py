"""The gateway's end of the token plane: one stream per replica, kept open while it is deployed.

A stream that breaks is opened again at once. If the replica still has everything that was missed,
the stream goes on and nobody notices; if it does not come back in time, or came back with a gap,
whatever was open there is lost and the listener is told so once.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import grpc

from cluster.peer_tls import PeerTls, open_channel
from cluster.streams.stream_codec import (
    METHOD,
    PROTOCOL_VERSION,
    SECRET_METADATA_KEY,
    Heartbeat,
    StepMessage,
    decode_heartbeat,
    decode_step,
    encode_expected_handoff,
)
from cluster.wire import token_stream_pb2 as wire
from replicas.handoff import HandoffIn
from replicas.request import EngineRequest

log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.02
LAST_RETRY_S = 1.0
# Messages that wait for a replica which reads slowly; figures are not added to more.
MAX_WAITING_FOR_REPORT = 16
FIRST_WELCOME_TIMEOUT_S = 5.0


StreamCall: TypeAlias = "grpc.aio.StreamStreamCall[wire.GatewayMessage, wire.ReplicaMessage]"


class StreamListener(Protocol):
    """Who is told what arrives, always on the event loop, in order."""

    def on_open(self) -> None:
        """The stream is up, for the first time or without a gap after a break."""
        ...

    def on_step(self, step: StepMessage) -> None:
        """One engine step, or several coalesced ones."""
        ...

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """The replica lives."""
        ...

    def on_break(self) -> None:
        """The stream broke and may come back."""
        ...

    def on_lost(self, reason: str) -> None:
        """Whatever was open on the replica is lost; a new stream may follow."""
        ...


@dataclass(frozen=True, slots=True)
class StreamTarget:
    """Whom to attach to and as whom. resume_timeout_s: time for a broken stream to come back.

    tls: as the replica has it; without it the stream is in clear.
    """

    address: str
    gateway_id: str
    secret: str
    resume_timeout_s: float = 0.5
    max_message_bytes: int = 16 * 1024 * 1024
    tls: PeerTls | None = None


class TokenStreamClient:
    """Keeps one stream to one replica open until it is closed or the replica says goodbye."""

    def __init__(
        self, target: StreamTarget, *, listener: StreamListener, clock: Callable[[], float]
    ) -> None:
        self._target = target
        self._listener = listener
        self._clock = clock
        self._outgoing: asyncio.Queue[wire.GatewayMessage] = asyncio.Queue()
        self._incarnation = ""
        self._last_sequence = 0
        self._broken_at: float | None = None
        self._is_up = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Attach in the background, again and again until closed."""
        self._task = asyncio.create_task(self._run(), name=f"stream {self._target.address}")

    def finish_choice(self, request_id: str, attempt: int, choice: int) -> None:
        """Tell the replica that a stop string ended this choice."""
        self._outgoing.put_nowait(
            wire.GatewayMessage(
                finish_choice=wire.FinishChoice(
                    request_id=request_id, attempt=attempt, choice=choice
                )
            )
        )

    def expect_handoff(self, request: EngineRequest, handoff: HandoffIn) -> None:
        """Tell the replica of a request that will be handed over to it; lost with the stream."""
        if self._is_up:
            message = encode_expected_handoff(request, handoff)
            self._outgoing.put_nowait(wire.GatewayMessage(expect_handoff=message))

    def forget_handoff(self, request_id: str) -> None:
        """Tell the replica that a request will not be handed over to it; lost with the stream."""
        if self._is_up:
            message = wire.ForgetHandoff(request_id=request_id)
            self._outgoing.put_nowait(wire.GatewayMessage(forget_handoff=message))

    def watch(self, seconds: float) -> None:
        """Ask for views for so long from now on; not kept for later while the stream is down."""
        if self._is_up:
            self._outgoing.put_nowait(wire.GatewayMessage(watch=wire.Watch(seconds=seconds)))

    def send_metric_report(self, report: wire.MetricReport) -> None:
        """Hand this gateway's figures to the replica, if it listens; the next ones follow soon."""
        if self._is_up and self._outgoing.qsize() < MAX_WAITING_FOR_REPORT:
            self._outgoing.put_nowait(wire.GatewayMessage(metric_report=report))

    def ask_kv_snapshot(self) -> None:
        """Ask for all that the replica's prefix cache can find; lost with the stream."""
        if self._is_up:
            message = wire.GatewayMessage(ask_kv_snapshot=wire.AskKvSnapshot())
            self._outgoing.put_nowait(message)

    async def close(self) -> None:
        """Detach for good; the listener hears nothing more."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            reason = await self._attach_once()
            if self._is_up:
                retry_s = FIRST_RETRY_S
                self._is_up = False
            self._after_break(reason)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, LAST_RETRY_S)

    async def _attach_once(self) -> str:
        """One stream from opening to its end; returns why it ended."""
        options = (
            ("grpc.max_send_message_length", self._target.max_message_bytes),
            ("grpc.max_receive_message_length", self._target.max_message_bytes),
            ("grpc.keepalive_time_ms", 10_000),
            ("grpc.keepalive_timeout_ms", 5_000),
            ("grpc.use_local_subchannel_pool", 1),
        )
        try:
            # A host that is gone answers nothing at all, so silence before Welcome has an end.
            async with (
                asyncio.timeout(self._welcome_timeout_s()) as patience,
                open_channel(self._target.address, self._target.tls, options=options) as channel,
            ):
                attach = channel.stream_stream(
                    METHOD,
                    request_serializer=wire.GatewayMessage.SerializeToString,
                    response_deserializer=wire.ReplicaMessage.FromString,
                )
                call = attach(metadata=((SECRET_METADATA_KEY, self._target.secret),))
                # A task of our own: an iterator that gRPC reads from is not ended with its call.
                async with _ended_with(self._send(call)):
                    async for message in call:
                        if (reason := self._receive(message)) is not None:
                            return reason
                        patience.reschedule(None)
        except TimeoutError:
            return "no answer"
        except grpc.aio.AioRpcError as error:
            if error.code() in (
                grpc.StatusCode.UNAUTHENTICATED,
                grpc.StatusCode.FAILED_PRECONDITION,
            ):
                log.error(
                    "replica turned this gateway away address=%s details=%s",
                    self._target.address,
                    error.details(),
                )
            return f"{error.code().name}: {error.details()}"
        return "stream ended"

    def _welcome_timeout_s(self) -> float:
        if self._broken_at is None:
            return FIRST_WELCOME_TIMEOUT_S
        left_s = self._broken_at + self._target.resume_timeout_s - self._clock()
        return max(FIRST_RETRY_S, left_s)

    async def _send(self, call: StreamCall) -> None:
        """Say hello, then whatever is put in line, until the call is over."""
        hello = wire.Hello(
            protocol_version=PROTOCOL_VERSION,
            gateway_id=self._target.gateway_id,
            incarnation=self._incarnation,
            last_sequence=self._last_sequence,
        )
        # Why a call has ended is what its reader is told.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(wire.GatewayMessage(hello=hello))
            while True:
                await call.write(await self._outgoing.get())

    def _receive(self, message: wire.ReplicaMessage) -> str | None:
        """Pass one message on; a reason when the replica ends the stream on purpose."""
        kind = message.WhichOneof("kind")
        if kind == "step":
            step = decode_step(message.step)
            self._last_sequence = step.sequence
            self._listener.on_step(step)
        elif kind == "heartbeat":
            self._listener.on_heartbeat(decode_heartbeat(message.heartbeat))
        elif kind == "welcome":
            self._on_welcome(message.welcome)
        elif kind == "goodbye":
            self._lose(message.goodbye.reason)
            return message.goodbye.reason
        return None

    def _on_welcome(self, welcome: wire.Welcome) -> None:
        if self._incarnation and not welcome.resumed:
            self._lose("the stream came back with a gap")
        self._is_up = True
        self._broken_at = None
        self._incarnation = welcome.incarnation
        log.info("replica attached replica=%s resumed=%s", welcome.replica_id, welcome.resumed)
        self._listener.on_open()

    def _after_break(self, reason: str) -> None:
        """Decide after each failed or ended stream whether there is still something to resume."""
        if not self._incarnation:
            return
        now = self._clock()
        if self._broken_at is None:
            self._broken_at = now
            log.warning("stream broke address=%s reason=%s", self._target.address, reason)
            self._listener.on_break()
        elif now - self._broken_at >= self._target.resume_timeout_s:
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        self._incarnation = ""
        self._last_sequence = 0
        self._broken_at = None
        while not self._outgoing.empty():
            self._outgoing.get_nowait()
        log.warning("replica lost address=%s reason=%s", self._target.address, reason)
        self._listener.on_lost(reason)


@asynccontextmanager
async def _ended_with(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Let `work` run beside the block, and no longer."""
    task = asyncio.create_task(work, name="token stream sender")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
