"""The Serve deployment that owns one engine: carries Serve's calls to a ReplicaService."""

import asyncio
import logging
import os
from collections.abc import Mapping

import ray
from ray import serve

from cluster.cluster_secret import cluster_secret
from cluster.config import ClusterConfig
from cluster.handoff.block_stream_server import BlockStreamBinding
from cluster.handoff.handoff_ways import HandoffWays
from cluster.kv_events.opening import KvEventsTap, open_publisher
from cluster.metrics.ray_export import RayExport
from cluster.peer_tls import PeerTls
from cluster.replica.engine_starting import EngineStarter
from cluster.replica.engine_supervisor import HealthLimits
from cluster.replica.open_requests import Acknowledgement
from cluster.replica.replica_announcement import ReplicaRoute
from cluster.replica.replica_service import ReplicaIdentity, ReplicaService
from cluster.replica.replica_store import ReplicaStore
from cluster.streams.token_stream_server import StreamBinding
from cluster.worker_logging import log_to_stderr
from replicas.request import EngineRequest

log = logging.getLogger(__name__)

_EVERY_INTERFACE = ("0.0.0.0", "::", "")


class Replica:
    """One engine under Serve: its lifecycle, health and calls; tokens do not pass here.

    args: a ClusterConfig as plain values. start_engine: how to get a core.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, args: Mapping[str, object], start_engine: EngineStarter
    ) -> None:
        log_to_stderr()
        config = ClusterConfig.from_args(args)
        limits = HealthLimits(
            stall_s=config.replica.stall_timeout_s, restart_s=config.replica.startup_timeout_s
        )
        store = ReplicaStore(config.store, ways=_ways(config))
        self._kv_events = KvEventsTap(
            open_publisher(
                config.kv_events,
                host=_advertise_host(config),
                model_name=config.gateway.served_model_name or config.engine.model,
                block_size=config.engine.scheduler.block_size,
            )
        )
        self._service = ReplicaService(
            _identity(config),
            start_engine=lambda on_output, on_exit: start_engine(
                config.engine,
                on_output=self._kv_events.on(on_output),
                on_exit=on_exit,
                store=store.access,
            ),
            binding=_binding(config),
            limits=limits,
            on_metrics=RayExport(),
            store_stats=store.stats,
        )
        await self._service.start()

    async def generate(self, request: EngineRequest, route: ReplicaRoute) -> Acknowledgement:
        """Run one request; the call stays open until it has ended."""
        return await self._service.generate(request, route)

    async def wake(self) -> None:
        """Answer a call that only asked for a replica to be there (cluster.pools.pool_waking)."""

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve twice a second, for the scaling of the pool."""
        return self._service.load_figures()

    def record_replica_metadata(self) -> dict[str, object]:
        """Called by Serve once, when the replica is ready; reaches every gateway."""
        return self._service.announcement.to_metadata()

    async def check_health(self) -> None:
        """Called by Serve; raises when the engine makes no progress."""
        self._service.check_health()

    async def __del__(self) -> None:
        """Called by Serve when requests have drained and the replica is to end."""
        # The constructor may have failed before there was a service.
        service = getattr(self, "_service", None)
        if service is not None:
            await service.close()
            await asyncio.to_thread(self._kv_events.close)


def _advertise_host(config: ClusterConfig) -> str:
    host = config.replica.token_stream_host
    if host in _EVERY_INTERFACE:
        host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    return host


def _identity(config: ClusterConfig) -> ReplicaIdentity:
    return ReplicaIdentity(
        replica_id=serve.get_replica_context().replica_id.unique_id,
        role=config.engine.role,
        advertise_host=_advertise_host(config),
        served_name=config.gateway.served_model_name,
        ttft_slo_s=config.router.ttft_slo_s,
        tpot_slo_s=config.router.tpot_slo_s,
    )


def _ways(config: ClusterConfig) -> HandoffWays:
    if config.engine.role == "mixed":
        return HandoffWays()
    binding = BlockStreamBinding(
        host=config.replica.token_stream_host,
        advertise_host=_advertise_host(config),
        secret=cluster_secret(os.environ),
        port=config.replica.block_stream_port,
        tls=PeerTls.of(config.peers),
    )
    return HandoffWays(config.handoff.handoff_transport, binding)


def _binding(config: ClusterConfig) -> StreamBinding:
    return StreamBinding(
        host=config.replica.token_stream_host,
        secret=cluster_secret(os.environ),
        port=config.replica.token_stream_port,
        heartbeat_interval_s=config.router.heartbeat_interval_s,
        gateway_grace_s=config.replica.gateway_grace_s,
        max_message_bytes=config.replica.max_stream_message_bytes,
        tls=PeerTls.of(config.peers),
    )
