"""A gateway's dispatcher and real replicas in one event loop, to measure them together.

The engine cores are processes as ever; Ray and HTTP, which cost each layout the same, are left out.
"""

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cluster.config import ClusterConfig
from cluster.dispatch.replica_directory import Compatibility, ReplicaDirectory
from cluster.dispatch.replica_link import GatewayIdentity
from cluster.dispatch.serve_dispatcher import CallReplica, ServeDispatcher
from cluster.handoff.block_stream_server import BlockStreamBinding
from cluster.handoff.handoff_ways import HandoffWays
from cluster.handoff.pair_dispatcher import PairDispatcher, PairSettings
from cluster.pools.pool_layout import Pool
from cluster.replica.engine_starting import start_real_engine
from cluster.replica.engine_supervisor import HealthLimits
from cluster.replica.open_requests import Acknowledgement
from cluster.replica.replica_announcement import ReplicaRoute
from cluster.replica.replica_service import ReplicaIdentity, ReplicaService
from cluster.replica.replica_store import ReplicaStore
from cluster.streams.token_stream_server import StreamBinding
from replicas.request import EngineRequest
from router.policies import policy_of
from router.prefixes.prefix_index import PrefixIndex
from router.request_router import RequestRouter

_GATEWAY = "bench"
_READY_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Timing:
    """One request as its client saw it: seconds to the first token, and of each one after it."""

    ttft_s: float
    gaps_s: tuple[float, ...]

    @property
    def tpot_s(self) -> float:
        """Mean seconds of each token after the first."""
        return sum(self.gaps_s) / len(self.gaps_s)


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """What a benchmark may use."""

    dispatcher: ServeDispatcher | PairDispatcher
    directory: ReplicaDirectory

    async def time(self, request: EngineRequest) -> Timing:
        """Run one request to its end."""
        sent_at = time.perf_counter()
        feed = await self.dispatcher.open(request)
        moments: list[float] = []
        async for entry in feed:
            # Tokens that arrive together were waited for once.
            moments.extend(time.perf_counter() for _ in entry.token_ids)
        await feed.close()
        gaps = tuple(later - sooner for sooner, later in zip(moments, moments[1:], strict=False))
        return Timing(moments[0] - sent_at, gaps)


@asynccontextmanager
async def local_cluster(config: ClusterConfig, *, fingerprint: str) -> AsyncIterator[LocalCluster]:
    """Replicas of every pool of `config`, ready, and what dispatches to them.

    fingerprint: of the model, whose prepared folder config.engine.model names.
    """
    secret = secrets.token_hex(16)
    replicas: dict[str, ReplicaService] = {}

    def call(request: EngineRequest, route: ReplicaRoute) -> "asyncio.Task[Acknowledgement]":
        service = replicas[route.replica_id]
        return asyncio.get_running_loop().create_task(service.generate(request, route))

    async with contextlib.AsyncExitStack() as ends:
        for pool in config.pools():
            for number in range(pool.num_replicas):
                name = f"{pool.role}{number}"
                replicas[name] = _replica(name, pool, config, secret)
                await replicas[name].start()
                ends.push_async_callback(replicas[name].close)
        made = _gateway(config, secret, fingerprint, call)
        ends.push_async_callback(made.directory.close)
        ends.push_async_callback(made.dispatcher.close)
        made.directory.start()
        made.directory.on_replica_set(
            {name: replica.announcement.to_metadata() for name, replica in replicas.items()}
        )
        while made.directory.health().num_replicas < len(replicas):  # noqa: ASYNC110 - as heard
            await asyncio.sleep(_READY_POLL_S)
        yield made


def _replica(name: str, pool: Pool, config: ClusterConfig, secret: str) -> ReplicaService:
    binding = BlockStreamBinding("127.0.0.1", "127.0.0.1", secret)
    ways = HandoffWays(config.handoff.handoff_transport, binding)
    store = ReplicaStore(config.store, ways=ways if pool.role != "mixed" else None)
    return ReplicaService(
        ReplicaIdentity(name, pool.role, "127.0.0.1"),
        start_engine=lambda on_output, on_exit: start_real_engine(
            pool.engine, on_output=on_output, on_exit=on_exit, store=store.access
        ),
        binding=StreamBinding("127.0.0.1", secret),
        limits=HealthLimits(),
    )


def _gateway(
    config: ClusterConfig,
    secret: str,
    fingerprint: str,
    call: CallReplica,
) -> LocalCluster:
    has_pairs = any(pool.role == "prefill" for pool in config.pools())
    policy = policy_of(config.router, random.Random(0))
    index = PrefixIndex(max_blocks=config.router.max_index_blocks)
    router = RequestRouter(
        policy,
        index=index if policy.uses_hits or has_pairs else None,
        gateway_id=_GATEWAY,
        prefill_policy=policy_of(config.router, random.Random(1)) if has_pairs else None,
    )
    directory = ReplicaDirectory(
        identity=GatewayIdentity(_GATEWAY, secret),
        config=config.router,
        router=router,
        clock=time.monotonic,
        compatibility=Compatibility(fingerprint),
        index=index if policy.uses_hits or has_pairs else None,
    )
    attempts = ServeDispatcher(router=router, directory=directory, call=call, config=config.router)
    if not has_pairs:
        return LocalCluster(attempts, directory)
    scheduler = config.engine.scheduler
    settings = PairSettings(
        handoff=config.handoff,
        router=config.router,
        watermark=scheduler.watermark,
        block_size=scheduler.block_size,
    )
    pairs = PairDispatcher(attempts, router=router, settings=settings, clock=time.monotonic)
    return LocalCluster(pairs, directory)
