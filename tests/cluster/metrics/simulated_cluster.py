"""Gateways with HTTP on top and replicas with the real engine below, in one event loop."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import httpx

from cluster.config import GatewayConfig
from cluster.dispatch.replica_directory import ReplicaDirectory
from cluster.gateway.http_app import GatewayServices, build_http_app
from cluster.metrics.gateway_metrics import GatewayMetrics
from cluster.metrics.gateway_reporter import GatewayReporter
from cluster.openai.answer import log as answer_log
from cluster.replica.engine_supervisor import HealthLimits
from cluster.replica.replica_service import ReplicaIdentity, ReplicaService
from cluster.text.chat_template import ChatTemplate
from replicas.config import SchedulerConfig
from replicas.engine import Engine
from replicas.engine_commands import Cancel, FinishChoice, Submit, Watch
from replicas.engine_info import EngineInfo
from replicas.engine_loop import EngineLoop
from replicas.simulated_runner import SimulatedRunner, StepCost
from router.config import RouterConfig
from tests.cluster.openai.conftest import MODEL, TEMPLATE, byte_tokenizer
from tests.cluster.replica_harness import BINDING, a_gateway, until

# So small that requests wait, are refused, and take each other's blocks.
TIGHT = SchedulerConfig(
    num_blocks=24,
    block_size=4,
    max_num_seqs=6,
    max_num_batched_tokens=64,
    max_prefill_tokens=4,
    max_model_len=96,
    max_num_queued_reqs=8,
    watermark=0.2,
)
CAREFUL = RouterConfig(
    accept_timeout_s=5.0,
    heartbeat_interval_s=0.05,
    suspect_after_missed=100,
    stuck_after_s=0.4,
    resume_timeout_s=5.0,
    policy="prefix_affinity",
)
STEP = StepCost(fixed_s=0.002)


class SimulatedEngine:
    """The real engine with a runner that has no model, in a thread; can be stalled and killed."""

    def __init__(self, on_output, on_exit):
        runner = SimulatedRunner(
            num_blocks=TIGHT.num_blocks,
            block_size=TIGHT.block_size,
            max_num_seqs=TIGHT.max_num_seqs,
            vocab_size=127,
            cost=STEP,
            sleep=self._sleep,
        )
        self.stall_s = 0.0
        self._engine = Engine(TIGHT, runner, clock=time.monotonic)
        self._loop = EngineLoop(self._engine, on_output)
        self._on_exit = on_exit
        self.info = EngineInfo(
            model="tiny/model",
            fingerprint=MODEL.fingerprint,
            role="mixed",
            dtype="float32",
            kernels="simulated",
            deterministic=True,
            num_threads=1,
            num_blocks=TIGHT.num_blocks,
            block_size=TIGHT.block_size,
            block_bytes=1,
            max_model_len=TIGHT.max_model_len,
            max_num_seqs=TIGHT.max_num_seqs,
            phases=(("build", 0.25),),
        )
        self._thread = threading.Thread(target=self._loop.run, daemon=True)
        self._thread.start()

    def submit(self, request):
        self._engine.inbox.put(Submit(request))

    def cancel(self, request_id, attempt):
        self._engine.inbox.put(Cancel(request_id, attempt))

    def finish_choice(self, request_id, attempt, choice):
        self._engine.inbox.put(FinishChoice(request_id, attempt, choice))

    def watch(self, seconds):
        self._engine.inbox.put(Watch(seconds))

    def crash(self):
        self._loop.stop()
        self._thread.join()
        self._on_exit("killed by a test")

    def close(self):
        self._loop.stop()
        self._thread.join()
        self._engine.close()

    def _sleep(self, seconds):
        stall_s, self.stall_s = self.stall_s, 0.0
        time.sleep(seconds + stall_s)


@dataclass
class SimulatedReplica:
    service: ReplicaService
    cores: list[SimulatedEngine]


@dataclass
class SimulatedGateway:
    metrics: GatewayMetrics
    reporter: GatewayReporter
    directory: ReplicaDirectory
    http: httpx.AsyncClient

    async def scrape(self, **headers):
        answer = await self.http.get("/metrics", headers=headers)
        assert answer.status_code == 200
        return answer

    async def complete(self, prompt="Say", **body):
        return await self.http.post("/v1/completions", json={"prompt": prompt} | body)


@dataclass
class SimulatedCluster:
    gateways: list[SimulatedGateway]
    replicas: dict[str, SimulatedReplica] = field(default_factory=dict)


@asynccontextmanager
async def simulated_cluster(num_replicas=2, num_gateways=2, ports=None, **config):
    """ports: what gateways are told in place of a replica's own port, by its id."""
    answer_log.setLevel("WARNING")
    async with AsyncExitStack() as stack:
        replicas = {
            name: await stack.enter_async_context(_replica(name))
            for name in (f"replica{number}" for number in range(num_replicas))
        }
        gateways = [
            await stack.enter_async_context(_gateway(f"gateway{number}", replicas, config))
            for number in range(num_gateways)
        ]
        made = SimulatedCluster(gateways, replicas)
        for gateway in gateways:
            gateway.directory.on_replica_set(announced(replicas, ports or {}))
            await until(_is_ready(gateway, num_replicas), timeout_s=10)
        yield made


def announced(replicas, ports):
    """What Serve would tell the gateways."""
    metadata = {name: r.service.announcement.to_metadata() for name, r in replicas.items()}
    for name, port in ports.items():
        metadata[name]["address"] = f"127.0.0.1:{port}"
    return metadata


def _is_ready(gateway, num_replicas):
    return lambda: gateway.directory.health().num_replicas == num_replicas


@asynccontextmanager
async def _replica(name) -> AsyncIterator[SimulatedReplica]:
    cores: list[SimulatedEngine] = []

    def start_engine(on_output, on_exit):
        cores.append(SimulatedEngine(on_output, on_exit))
        return cores[-1]

    service = ReplicaService(
        ReplicaIdentity(name, "mixed", "127.0.0.1"),
        start_engine=start_engine,
        binding=BINDING,
        limits=HealthLimits(),
    )
    await service.start()
    try:
        yield SimulatedReplica(service, cores)
    finally:
        await service.close()


@asynccontextmanager
async def _gateway(name, replicas, config) -> AsyncIterator[SimulatedGateway]:
    def call(request, route):
        service = replicas[route.replica_id].service
        return asyncio.get_running_loop().create_task(service.generate(request, route))

    router, directory, dispatcher = a_gateway(call, gateway_id=name, config=CAREFUL)
    metrics = GatewayMetrics(gateway_id=name, model_name="tiny/model")
    reporter = GatewayReporter(metrics, router=router, directory=directory, interval_s=0.1)
    tokenizer = byte_tokenizer()
    services = GatewayServices(
        model=MODEL,
        config=GatewayConfig(**config),
        tokenizer=tokenizer,
        template=ChatTemplate({"default": TEMPLATE}, special_tokens={}),
        dispatcher=dispatcher,
        max_model_len=TIGHT.max_model_len,
        block_size=TIGHT.block_size,
        num_blocks=TIGHT.num_blocks,
        version="1.2.3",
        metrics=metrics,
    )
    reporter.start()
    transport = httpx.ASGITransport(build_http_app(services))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            yield SimulatedGateway(metrics, reporter, directory, http)
    finally:
        await reporter.close()
        await dispatcher.close()
        await directory.close()
        tokenizer.close()
