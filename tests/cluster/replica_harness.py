"""Gateways and replicas in one event loop: the real ones, joined by calls in place of Ray Serve."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from cluster.dispatch.replica_directory import Compatibility, ReplicaDirectory
from cluster.dispatch.replica_link import GatewayIdentity
from cluster.dispatch.serve_dispatcher import ServeDispatcher
from cluster.replica.engine_supervisor import HealthLimits
from cluster.replica.open_requests import Acknowledgement
from cluster.replica.replica_announcement import ReplicaRoute
from cluster.replica.replica_service import ReplicaIdentity, ReplicaService
from cluster.replica.scripted_engine import EngineScript, ScriptedEngine, scripted_token
from cluster.streams.token_stream_server import StreamBinding
from replicas.config import EngineConfig, SchedulerConfig
from replicas.request import EngineRequest, SamplingParams, TokenEntry
from router.config import RouterConfig
from router.policies import policy_of
from router.prefixes.prefix_index import PrefixIndex
from router.replica_status import ReplicaRole
from router.request_router import RequestRouter

SECRET = "the secret of a test cluster"
CONFIG = EngineConfig(model="scripted", scheduler=SchedulerConfig())
BINDING = StreamBinding("127.0.0.1", SECRET, heartbeat_interval_s=0.05)
LIMITS = HealthLimits()
FULL_SPEED = EngineScript()
FAST = RouterConfig(
    accept_timeout_s=2.0, heartbeat_interval_s=0.05, suspect_after_missed=6, resume_timeout_s=0.3
)


def a_request(
    request_id: str = "r", *, max_tokens: int = 5, prompt: tuple[int, ...] = (1, 2), n: int = 1
) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=max_tokens),
        root=b"root",
        num_choices=n,
    )


def expected_tokens(request: EngineRequest, choice: int = 0) -> list[int]:
    return [
        scripted_token(request, choice=choice, index=index, vocab_size=1000)
        for index in range(request.sampling.max_tokens)
    ]


async def read_all(feed: AsyncIterator[TokenEntry]) -> dict[int, list[int]]:
    """Every token by choice; checks that each entry starts where the last one ended."""
    tokens: dict[int, list[int]] = {}
    async for entry in feed:
        so_far = tokens.setdefault(entry.choice, [])
        assert entry.index == len(so_far), (entry, so_far)
        so_far.extend(entry.token_ids)
    return tokens


async def until(holds: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 - any state may be asked for
            await asyncio.sleep(0.005)


@dataclass
class Replica:
    """One replica with every core it ever had."""

    service: ReplicaService
    cores: list[ScriptedEngine]

    @property
    def core(self) -> ScriptedEngine:
        return self.cores[-1]


@dataclass
class Cluster:
    """Replicas by id, and what a gateway has of them."""

    router: RequestRouter
    directory: ReplicaDirectory
    dispatcher: ServeDispatcher
    replicas: dict[str, Replica] = field(default_factory=dict)

    def announce(self, *without: str) -> None:
        """Tell the gateway the replica set, as Serve would."""
        self.directory.on_replica_set(
            {
                replica_id: replica.service.announcement.to_metadata()
                for replica_id, replica in self.replicas.items()
                if replica_id not in without
            }
        )

    async def ready(self) -> None:
        """Wait until every replica can be chosen."""
        await until(lambda: self.directory.health().num_replicas == len(self.replicas))


async def start_replica(
    replica_id: str = "a",
    script: EngineScript = FULL_SPEED,
    *,
    binding: StreamBinding = BINDING,
    limits: HealthLimits = LIMITS,
    role: ReplicaRole = "mixed",
) -> Replica:
    cores: list[ScriptedEngine] = []

    def start_engine(on_output, on_exit):
        core = ScriptedEngine(script, CONFIG, on_output=on_output, on_exit=on_exit)
        cores.append(core)
        return core

    service = ReplicaService(
        ReplicaIdentity(replica_id, role, "127.0.0.1"),
        start_engine=start_engine,
        binding=binding,
        limits=limits,
    )
    await service.start()
    return Replica(service, cores)


def a_gateway(
    call: Callable[[EngineRequest, ReplicaRoute], "asyncio.Task[Acknowledgement]"],
    *,
    gateway_id: str = "gateway",
    secret: str = SECRET,
    config: RouterConfig = FAST,
    fingerprint: str = "",
) -> tuple[RequestRouter, ReplicaDirectory, ServeDispatcher]:
    policy = policy_of(config, random.Random(0))
    index = PrefixIndex(max_blocks=1000)
    router = RequestRouter(policy, index=index, gateway_id=gateway_id)
    directory = ReplicaDirectory(
        identity=GatewayIdentity(gateway_id, secret),
        config=config,
        router=router,
        clock=time.monotonic,
        compatibility=Compatibility(fingerprint),
        index=index,
    )
    directory.start()
    return (
        router,
        directory,
        ServeDispatcher(router=router, directory=directory, call=call, config=config),
    )


@asynccontextmanager
async def cluster(
    num_replicas: int = 1,
    script: EngineScript = FULL_SPEED,
    *,
    pools: Mapping[ReplicaRole, Sequence[EngineScript]] | None = None,
    **gateway: object,
) -> AsyncIterator[Cluster]:
    """A gateway and its replicas; at the end no task of theirs is left.

    pools: the scripts of each role's replicas, in place of mixed ones; they are named by their
    roles and numbers.
    """
    scripts = {f"replica{number}": ("mixed", script) for number in range(num_replicas)}
    if pools is not None:
        scripts = {
            f"{role}{number}": (role, each)
            for role, members in pools.items()
            for number, each in enumerate(members)
        }
    before = asyncio.all_tasks()
    replicas: dict[str, Replica] = {}

    def call(request: EngineRequest, route: ReplicaRoute) -> "asyncio.Task[Acknowledgement]":
        service = replicas[route.replica_id].service
        return asyncio.get_running_loop().create_task(service.generate(request, route))

    made = Cluster(*a_gateway(call, **gateway), replicas)
    for name, (role, each) in scripts.items():
        replicas[name] = await start_replica(name, each, role=role)
    made.announce()
    try:
        await made.ready()
        yield made
    finally:
        await made.dispatcher.close()
        await made.directory.close()
        for replica in replicas.values():
            await replica.service.close()
        await asyncio.sleep(0.01)
        left = asyncio.all_tasks() - before
        assert not left, left
