"""A gateway and its page on a real port; behind it replicas whole but for the model."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from cluster.config import GatewayConfig
from cluster.gateway.http_app import GatewayServices, build_http_app
from cluster.live.live_feed import LiveFeed
from cluster.replica.engine_supervisor import HealthLimits
from cluster.replica.replica_service import ReplicaIdentity, ReplicaService
from cluster.text.chat_template import ChatTemplate
from cluster.text.tokenizer import TextTokenizer
from replicas.config import SchedulerConfig
from replicas.engine import Engine
from replicas.engine_commands import Cancel, Command, FinishChoice, Submit, Watch
from replicas.engine_info import EngineInfo
from replicas.engine_loop import EngineLoop
from replicas.request import EngineRequest
from replicas.simulated_runner import SimulatedRunner, StepCost
from replicas.step_output import StepOutput
from tests.cluster.replica_harness import BINDING, a_gateway
from tests.cluster.tiny_model import NUM_PRINTABLE, prepare_tiny_model

START_TIMEOUT_S = 20.0
SCHEDULER = SchedulerConfig(
    block_size=16,
    num_blocks=96,
    max_num_seqs=16,
    max_num_batched_tokens=64,
    max_model_len=512,
)
COST = StepCost(fixed_s=0.02, per_token_s=0.0005)


class SimulatedEngine:
    """An engine in a thread, with everything of a real one but the model."""

    def __init__(
        self, *, on_output: Callable[[StepOutput], None], on_exit: Callable[[str], None]
    ) -> None:
        runner = SimulatedRunner(
            num_blocks=SCHEDULER.num_blocks,
            block_size=SCHEDULER.block_size,
            max_num_seqs=SCHEDULER.max_num_seqs,
            vocab_size=NUM_PRINTABLE,
            cost=COST,
        )
        self._on_exit = on_exit
        self._engine = Engine(SCHEDULER, runner, clock=time.monotonic)
        self._loop = EngineLoop(self._engine, on_output)
        self._thread = threading.Thread(target=self._loop.run, daemon=True)
        self._thread.start()
        self.info = EngineInfo(
            model="tiny",
            fingerprint="",
            role="mixed",
            dtype="float32",
            kernels="simulated",
            deterministic=True,
            num_threads=1,
            num_blocks=SCHEDULER.num_blocks,
            block_size=SCHEDULER.block_size,
            block_bytes=0,
            max_model_len=SCHEDULER.max_model_len,
            max_num_seqs=SCHEDULER.max_num_seqs,
        )

    def submit(self, request: EngineRequest) -> None:
        self._put(Submit(request))

    def cancel(self, request_id: str, attempt: int) -> None:
        self._put(Cancel(request_id, attempt))

    def finish_choice(self, request_id: str, attempt: int, choice: int) -> None:
        self._put(FinishChoice(request_id, attempt, choice))

    def watch(self, seconds: float) -> None:
        self._put(Watch(seconds))

    def close(self) -> None:
        self._loop.stop()
        self._thread.join()
        self._engine.close()

    def crash(self) -> None:
        """End as a killed process would."""
        self._loop.stop()
        self._on_exit("the simulated core was told to crash")

    def _put(self, command: Command) -> None:
        self._engine.inbox.put(command)


@dataclass
class LiveGateway:
    """Where the page is, and what stands behind it; `cores` by replica, the newest last."""

    port: int
    feed: LiveFeed | None = None
    cores: dict[str, list[SimulatedEngine]] = field(default_factory=dict)
    error: BaseException | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class _AnnouncedServer(uvicorn.Server):
    """Says that it is ready once it accepts connections; before that they would be refused."""

    def __init__(self, config: uvicorn.Config, is_ready: threading.Event) -> None:
        super().__init__(config)
        self._is_ready = is_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._is_ready.set()


@contextmanager
def live_gateway(
    folder: Path, *, num_replicas: int = 2, port: int = 0, **config: object
) -> Iterator[LiveGateway]:
    """Runs in a thread of its own; everything of it has ended when this returns."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        gateway = LiveGateway(listener.getsockname()[1])
        servers: list[uvicorn.Server] = []
        is_ready = threading.Event()

        def run() -> None:
            try:
                asyncio.run(
                    _serve(gateway, listener, servers, is_ready, folder, num_replicas, config)
                )
            except BaseException as error:  # noqa: BLE001 - raised again by the test's own thread
                gateway.error = error
            is_ready.set()

        thread = threading.Thread(target=run, name="live gateway")
        thread.start()
        assert is_ready.wait(START_TIMEOUT_S)
        try:
            if gateway.error is not None:
                raise gateway.error
            yield gateway
        finally:
            for server in servers:
                server.should_exit = True
            thread.join(START_TIMEOUT_S)
            assert not thread.is_alive()
    if gateway.error is not None:
        raise gateway.error


async def _serve(
    gateway: LiveGateway,
    listener: socket.socket,
    servers: list[uvicorn.Server],
    is_ready: threading.Event,
    folder: Path,
    num_replicas: int,
    config: dict[str, object],
) -> None:
    replicas = {}
    for name in [f"replica-{number}" for number in range(num_replicas)]:
        replicas[name] = await _replica(gateway, name)
    loop = asyncio.get_running_loop()
    _, directory, dispatcher = a_gateway(
        lambda request, route: loop.create_task(replicas[route.replica_id].generate(request, route))
    )
    directory.on_replica_set({n: s.announcement.to_metadata() for n, s in replicas.items()})
    feed = LiveFeed(lambda: directory.links, clock=time.monotonic, wall_clock=time.time)
    model = prepare_tiny_model(folder / f"model-{gateway.port}", fingerprint="")
    services = GatewayServices(
        model=model,
        config=GatewayConfig(**config),
        tokenizer=TextTokenizer.load(model),
        template=ChatTemplate.load(model),
        dispatcher=dispatcher,
        max_model_len=SCHEDULER.max_model_len,
        block_size=SCHEDULER.block_size,
        num_blocks=SCHEDULER.num_blocks,
        version="1.2.3",
        live=feed,
    )
    gateway.feed = feed
    server = _AnnouncedServer(
        uvicorn.Config(build_http_app(services), log_level="warning", timeout_graceful_shutdown=1),
        is_ready,
    )
    servers.append(server)
    try:
        await server.serve(sockets=[listener])
    finally:
        await feed.close()
        await dispatcher.close()
        await directory.close()
        for service in replicas.values():
            await service.close()
        services.tokenizer.close()


async def _replica(gateway: LiveGateway, name: str) -> ReplicaService:
    cores = gateway.cores.setdefault(name, [])

    def start_engine(on_output, on_exit):
        cores.append(SimulatedEngine(on_output=on_output, on_exit=on_exit))
        return cores[-1]

    service = ReplicaService(
        ReplicaIdentity(name, "mixed", "127.0.0.1"),
        start_engine=start_engine,
        binding=BINDING,
        limits=HealthLimits(),
    )
    await service.start()
    return service
