"""Puts a gateway's way to the replicas together: who is there, who takes a request, what if not.

From a request inwards: streams that move on (failover), pools that sleep (waking), requests that
two pools share (pairs), single attempts (serve), calls and token streams (directory).
"""

import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.serve.handle import DeploymentHandle

from cluster.cluster_secret import cluster_secret
from cluster.config import ClusterConfig
from cluster.dispatch.failover_dispatcher import FailoverDispatcher, FailoverSettings
from cluster.dispatch.replica_directory import Compatibility, ReplicaDirectory
from cluster.dispatch.replica_link import GatewayIdentity
from cluster.dispatch.serve_dispatcher import ServeDispatcher
from cluster.dispatch.serve_router_adapter import ServeCaller, WakeCaller, follow_replicas
from cluster.handoff.handoff_teller import HandoffTeller, Tell
from cluster.handoff.pair_dispatcher import PairDispatcher, PairSettings
from cluster.metrics.figures import Figures
from cluster.metrics.gateway_reporter import PoolSources
from cluster.peer_tls import PeerTls
from cluster.pools.pool_calls import PoolCaller, PoolSets
from cluster.pools.pool_waking import PoolWaker, WakingDispatcher
from cluster.pools.role_lending import RoleLending
from router.config import RouterConfig
from router.policies import policy_of
from router.prefixes.prefix_index import PrefixIndex
from router.request_router import RequestRouter

Pools = Mapping[str, DeploymentHandle[Any]]


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """gateway_id: unique to this process. fingerprint: of the model that replicas must serve.

    pools: the handle of each deployment of replicas, by role. sleepy: roles that may be empty.
    """

    gateway_id: str
    fingerprint: str
    pools: Pools
    sleepy: Sequence[str]


class GatewayDispatch:
    """Everything between a gateway's HTTP side and the replicas.

    figures: the gateway's metrics. tell: takes events for the page.
    """

    def __init__(
        self, config: ClusterConfig, address: GatewayAddress, *, figures: Figures, tell: Tell
    ) -> None:
        has_pairs = "prefill" in address.pools
        self.router, index = _router(config.router, address.gateway_id, has_pairs=has_pairs)
        self.directory = _directory(config, address, self.router, index)
        self._pools = address.pools
        self._tell = tell
        self._sets = PoolSets(self.directory)
        callers = {name: ServeCaller(handle) for name, handle in address.pools.items()}
        self.attempts = ServeDispatcher(
            router=self.router,
            directory=self.directory,
            call=PoolCaller(self._sets, callers),
            config=config.router,
        )
        pairs = self._pairs(config, figures) if has_pairs else None
        self.waker = PoolWaker({name: WakeCaller(address.pools[name]) for name in address.sleepy})
        waking = WakingDispatcher(
            pairs or self.attempts,
            router=self.router,
            waker=self.waker,
            hold_timeout_s=config.gateway.wake_timeout_s,
            min_prompt_tokens=config.handoff.min_handoff_tokens,
        )
        self.sources = PoolSources(waking, pairs)
        self.failover = FailoverDispatcher(
            waking,
            settings=FailoverSettings.of(config.router),
            clock=time.monotonic,
            max_model_len=self._max_model_len,
            on_failover=self._tell_failover,
        )
        self._lending = self._lender(config) if has_pairs else None

    async def start(self) -> None:
        """Begin to follow the replicas of every pool."""
        self.directory.start()
        self.failover.start()
        if self._lending is not None:
            self._lending.start()
        for name, handle in self._pools.items():
            await follow_replicas(handle, self._sets.pool(name))

    async def close(self) -> None:
        """Close every stream, and what looks after them."""
        if self._lending is not None:
            await self._lending.close()
        await self.failover.close()
        await self.directory.close()

    def _pairs(self, config: ClusterConfig, figures: Figures) -> PairDispatcher:
        """What shares requests between the prefill pool and who decodes."""
        scheduler = config.engine.scheduler
        return PairDispatcher(
            self.attempts,
            router=self.router,
            settings=PairSettings(
                handoff=config.handoff,
                router=config.router,
                watermark=scheduler.watermark,
                block_size=scheduler.block_size,
            ),
            clock=time.monotonic,
            on_result=HandoffTeller(figures, self._tell).note,
        )

    def _lender(self, config: ClusterConfig) -> RoleLending | None:
        if not config.handoff.max_lent_replicas:
            return None
        return RoleLending(
            router=self.router,
            directory=self.directory,
            max_lent=config.handoff.max_lent_replicas,
            hold_s=config.handoff.lend_after_s,
            clock=time.monotonic,
            tell=self._tell,
        )

    def _max_model_len(self) -> int:
        """The longest context that every replica takes."""
        links = self.directory.links.values()
        return min((link.announcement.max_model_len for link in links), default=1 << 30)

    def _tell_failover(self, replica_id: str, reason: str, num_streams: int) -> None:
        text = f"{num_streams} requests go on elsewhere: {reason}"
        self._tell("failover", replica_id, text)


def _directory(
    config: ClusterConfig,
    address: GatewayAddress,
    router: RequestRouter,
    index: PrefixIndex | None,
) -> ReplicaDirectory:
    return ReplicaDirectory(
        identity=GatewayIdentity(
            gateway_id=address.gateway_id,
            secret=cluster_secret(os.environ),
            max_message_bytes=config.replica.max_stream_message_bytes,
            tls=PeerTls.of(config.peers),
        ),
        config=config.router,
        router=router,
        clock=time.monotonic,
        compatibility=Compatibility(fingerprint=address.fingerprint),
        index=index,
    )


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
