"""The Serve deployment that speaks HTTP: binds routes, tokenizer, router and streams together."""

import asyncio
import logging
import os
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle

from cluster.cluster_secret import cluster_secret
from cluster.config import ClusterConfig
from cluster.failover_dispatcher import FailoverDispatcher, FailoverSettings
from cluster.handoff_teller import HandoffTeller
from cluster.http_app import GatewayServices, build_http_app
from cluster.live_feed import LiveFeed
from cluster.metrics.gateway_metrics import GatewayMetrics
from cluster.metrics.gateway_reporter import GatewayReporter, PoolSources
from cluster.pair_dispatcher import PairDispatcher, PairSettings
from cluster.peer_tls import PeerTls
from cluster.pool_calls import PoolCaller, PoolSets
from cluster.pool_waking import PoolWaker, WakingDispatcher
from cluster.replica_announcement import ReplicaAnnouncement
from cluster.replica_directory import Compatibility, ReplicaDirectory
from cluster.replica_link import GatewayIdentity
from cluster.role_lending import RoleLending
from cluster.serve_dispatcher import ServeDispatcher
from cluster.serve_router_adapter import ServeCaller, WakeCaller, follow_replicas
from cluster.text.chat_template import ChatTemplate
from cluster.text.tokenizer import TextTokenizer
from cluster.tracing.call_tracer import open_tracer
from cluster.worker_logging import log_to_stderr
from replicas.models.prepared_model import PreparedModel
from router.config import RouterConfig
from router.policies import policy_of
from router.prefixes.prefix_index import PrefixIndex
from router.request_router import RequestRouter

log = logging.getLogger(__name__)

_DISTRIBUTION = "pagoda-serve"


class Gateway:
    """One copy of the HTTP side. It is ready when it has met the first replica.

    args: a ClusterConfig as plain values; its model is a prepared folder. pools: the handle of
    each deployment of replicas, by its role. sleepy: roles of pools that may be empty.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        args: Mapping[str, object],
        pools: Mapping[str, DeploymentHandle[Any]],
        sleepy: Sequence[str] = (),
    ) -> None:
        log_to_stderr()
        config = ClusterConfig.from_args(args)
        model = PreparedModel.load(config.engine.model)
        gateway_id = uuid.uuid4().hex
        has_pairs = "prefill" in pools
        router, index = _router(config.router, gateway_id, has_pairs=has_pairs)
        served_name = config.gateway.served_model_name or model.name
        self._tracer = open_tracer(config.tracing, model_name=served_name, gateway_id=gateway_id)
        metrics = GatewayMetrics(
            gateway_id=gateway_id, model_name=served_name, on_call_end=self._tracer
        )
        self._directory = ReplicaDirectory(
            identity=GatewayIdentity(
                gateway_id=gateway_id,
                secret=cluster_secret(os.environ),
                max_message_bytes=config.replica.max_stream_message_bytes,
                tls=PeerTls.of(config.peers),
            ),
            config=config.router,
            router=router,
            clock=time.monotonic,
            compatibility=Compatibility(fingerprint=model.fingerprint),
            index=index,
        )
        sets = PoolSets(self._directory)
        callers = {name: ServeCaller(handle) for name, handle in pools.items()}
        self._dispatcher = ServeDispatcher(
            router=router,
            directory=self._directory,
            call=PoolCaller(sets, callers),
            config=config.router,
        )
        self._live = LiveFeed(
            lambda: self._directory.links, clock=time.monotonic, wall_clock=time.time
        )
        pairs = self._pairs(config, router, metrics) if has_pairs else None
        waker = PoolWaker({name: WakeCaller(pools[name]) for name in sleepy})
        waking = WakingDispatcher(
            pairs or self._dispatcher,
            router=router,
            waker=waker,
            hold_timeout_s=config.gateway.wake_timeout_s,
            min_prompt_tokens=config.handoff.min_handoff_tokens,
        )
        self._failover = FailoverDispatcher(
            waking,
            settings=FailoverSettings.of(config.router),
            clock=time.monotonic,
            max_model_len=self._max_model_len,
            on_failover=self._tell_failover,
        )
        self._reporter = GatewayReporter(
            metrics,
            router=router,
            directory=self._directory,
            failovers=self._failover.counts,
            pools=PoolSources(waking, pairs),
        )
        if config.handoff.max_lent_replicas and has_pairs:
            self._lending = RoleLending(
                router=router,
                directory=self._directory,
                max_lent=config.handoff.max_lent_replicas,
                hold_s=config.handoff.lend_after_s,
                clock=time.monotonic,
                tell=self._live.events.tell,
            )
            self._lending.start()
        self._directory.start()
        self._failover.start()
        self._reporter.start()
        for name, handle in pools.items():
            await follow_replicas(handle, sets.pool(name))
        # Nobody has said yet how long a prompt may be, so a pool that sleeps is woken for that.
        for name in waker.decoders if not self._directory.links else ():
            waker.wake(name)
        sizes = await self._directory.first_announcement()
        if waker.decoders:
            # Who is held for a first replica waits longer than who is kept waiting by an engine;
            # the dispatchers have bounds of their own for both.
            held_s = max(config.gateway.admission_timeout_s, config.gateway.wake_timeout_s)
            config = replace(config, gateway=replace(config.gateway, admission_timeout_s=held_s))
        services = await asyncio.to_thread(_services, config, model, self._failover, sizes)
        self._services = replace(services, live=self._live, metrics=metrics)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve after the constructor."""
        return build_http_app(self._services)

    def _pairs(
        self, config: ClusterConfig, router: RequestRouter, metrics: GatewayMetrics
    ) -> PairDispatcher:
        """What shares requests between the prefill pool and who decodes."""
        scheduler = config.engine.scheduler
        return PairDispatcher(
            self._dispatcher,
            router=router,
            settings=PairSettings(
                handoff=config.handoff,
                router=config.router,
                watermark=scheduler.watermark,
                block_size=scheduler.block_size,
            ),
            clock=time.monotonic,
            on_result=HandoffTeller(metrics.figures, self._live.events.tell).note,
        )

    def _max_model_len(self) -> int:
        """The longest context that every replica takes."""
        links = self._directory.links.values()
        return min((link.announcement.max_model_len for link in links), default=1 << 30)

    def _tell_failover(self, replica_id: str, reason: str, num_streams: int) -> None:
        text = f"{num_streams} requests go on elsewhere: {reason}"
        self._live.events.tell("failover", replica_id, text)

    async def __del__(self) -> None:
        """Called by Serve when the gateway is to end."""
        # The constructor may have failed before there was anything to close.
        for part in ("_live", "_reporter", "_lending", "_failover", "_directory"):
            if hasattr(self, part):
                await getattr(self, part).close()
        if hasattr(self, "_services"):
            self._services.tokenizer.close()
        tracer = getattr(self, "_tracer", None)
        if tracer is not None:
            await asyncio.to_thread(tracer.close)


def _router(
    config: RouterConfig, gateway_id: str, *, has_pairs: bool
) -> tuple[RequestRouter, PrefixIndex | None]:
    """The router, and the index of prefix caches if it needs one: a pair weighs hits, too."""
    chance = random.Random(gateway_id)
    policy = policy_of(config, chance)
    index = None
    if policy.uses_hits or has_pairs:
        index = PrefixIndex(max_blocks=config.max_index_blocks)
    prefill_policy = policy_of(config, chance) if has_pairs else None
    router = RequestRouter(
        policy, index=index, gateway_id=gateway_id, prefill_policy=prefill_policy
    )
    return router, index


def _services(
    config: ClusterConfig,
    model: PreparedModel,
    dispatcher: FailoverDispatcher,
    sizes: ReplicaAnnouncement,
) -> GatewayServices:
    tokenizer = TextTokenizer.load(model)
    return GatewayServices(
        model=model,
        config=config.gateway,
        tokenizer=tokenizer,
        template=ChatTemplate.load(model),
        dispatcher=dispatcher,
        max_model_len=sizes.max_model_len,
        block_size=sizes.block_size,
        num_blocks=sizes.num_blocks,
        version=version(_DISTRIBUTION),
    )
