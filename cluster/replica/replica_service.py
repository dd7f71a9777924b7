"""One replica without Ray: takes requests, runs the engine, streams tokens to every gateway."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from cluster.metrics.lifetime_totals import LifetimeTotals
from cluster.metrics.metric_report import MetricReport
from cluster.metrics.replica_metrics import ReplicaMetrics
from cluster.replica.engine_supervisor import (
    EngineEvents,
    EngineSupervisor,
    HealthLimits,
    StartEngine,
)
from cluster.replica.handoff_promises import HandoffPromises
from cluster.replica.kv_catalogue import KvCatalogue
from cluster.replica.open_requests import Acknowledgement, OpenRequests
from cluster.replica.replica_announcement import ReplicaAnnouncement, ReplicaRoute
from cluster.replica.replica_load import ReplicaLoad
from cluster.streams.stream_codec import PROTOCOL_VERSION, EngineReport, Heartbeat
from cluster.streams.token_stream_server import StreamBinding, StreamCallbacks, TokenStreamServer
from kvstore.store_stats import StoreStats
from replicas.engine_info import EngineInfo
from replicas.engine_stats import EngineStats
from replicas.request import EngineRequest, TokenEntry
from replicas.step_output import StepOutput
from router.prefixes.kv_events import KvSnapshot
from router.replica_status import ReplicaRole

log = logging.getLogger(__name__)

METRICS_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """replica_id: as the deployment knows it. advertise_host: where gateways find this process.

    served_name: what clients call the model; empty for its own name. ttft_slo_s, tpot_slo_s: what
    its pool is scaled to keep; 0 for nothing.
    """

    replica_id: str
    role: ReplicaRole
    advertise_host: str
    served_name: str = ""
    ttft_slo_s: float = 0.0
    tpot_slo_s: float = 0.0


class ReplicaService:
    """Owns an engine and a token stream; every method runs on the event loop.

    A request is a call that stays open until it has ended (DESIGN 2.5): ending the call early
    cancels the request, and the engine frees its blocks within a step.

    on_metrics: told of this replica's figures about once a second; must not block. store_stats: of
    the block store's clients, if there is a store; must not wait for it.
    """

    def __init__(
        self,
        identity: ReplicaIdentity,
        *,
        start_engine: StartEngine,
        binding: StreamBinding,
        limits: HealthLimits,
        on_metrics: Callable[[MetricReport], None] | None = None,
        store_stats: Callable[[], StoreStats | None] = lambda: None,
    ) -> None:
        self._identity = identity
        self._load = ReplicaLoad(
            identity.role, ttft_slo_s=identity.ttft_slo_s, tpot_slo_s=identity.tpot_slo_s
        )
        self._totals = LifetimeTotals()
        self._metrics = ReplicaMetrics(replica_id=identity.replica_id, pool=identity.role)
        self._on_metrics = on_metrics
        self._store_stats = store_stats
        self._metrics_task: asyncio.Task[None] | None = None
        self._requests = OpenRequests()
        self._promises = HandoffPromises(clock=time.monotonic)
        self._stats = EngineStats()
        self._kv = KvCatalogue()
        self._is_closing = False
        self._engine = EngineSupervisor(
            start_engine,
            events=EngineEvents(
                on_steps=self._on_steps,
                on_core_lost=self._on_core_lost,
                on_core_back=self._on_core_back,
            ),
            clock=time.monotonic,
            limits=limits,
        )
        self._stream = TokenStreamServer(
            replica_id=identity.replica_id,
            incarnation=uuid.uuid4().hex,
            binding=binding,
            callbacks=StreamCallbacks(
                heartbeat=self.heartbeat,
                on_finish_choice=self._engine.finish_choice,
                on_gateway_lost=self._on_gateway_lost,
                on_watch=self._engine.watch,
                on_expect_handoff=self._expect_handoff,
                on_forget_handoff=self._promises.end,
                kv_snapshot=self._kv_snapshot,
            ),
        )
        self._info: EngineInfo | None = None
        self._port = 0

    async def start(self) -> None:
        """Start the engine, then listen; returns when requests can be served."""
        self._info = await self._engine.start()
        self._stats = _idle_stats(self._info)
        self._metrics.describe(self._info, served_name=self._identity.served_name)
        self._port = await self._stream.start()
        self._metrics.loop_lag.start()
        self._metrics_task = asyncio.create_task(self._report_metrics(), name="replica metrics")

    @property
    def announcement(self) -> ReplicaAnnouncement:
        """What gateways need to know; only after `start`."""
        assert self._info is not None
        return ReplicaAnnouncement(
            address=f"{self._identity.advertise_host}:{self._port}",
            role=self._identity.role,
            block_size=self._info.block_size,
            fingerprint=self._info.fingerprint,
            protocol_version=PROTOCOL_VERSION,
            max_model_len=self._info.max_model_len,
            num_blocks=self._info.num_blocks,
        )

    async def generate(self, request: EngineRequest, route: ReplicaRoute) -> Acknowledgement:
        """Run a request to its end; cancelling this call cancels the request."""
        key = (request.request_id, request.attempt)
        if (obstacle := self._obstacle(key, route)) is not None:
            return Acknowledgement(is_accepted=False, reason=obstacle)
        done = self._requests.add(request, route.gateway_id)
        self._engine.submit(request)
        try:
            return await done
        except asyncio.CancelledError:
            if self._requests.remove(key):
                self._engine.cancel(*key)
                self._note_idle()
            raise

    def heartbeat(self) -> Heartbeat:
        """This replica's state now."""
        return Heartbeat(
            last_step_age_s=self._engine.last_step_age_s,
            has_work=len(self._requests) > 0,
            is_accepting=self._engine.is_ready and not self._is_closing,
            report=self._report(),
        )

    def load_figures(self) -> dict[str, float]:
        """What the scaling of the pool goes by."""
        return self._load.figures(self._report())

    def check_health(self) -> None:
        """Raise EngineUnhealthy if the engine makes no progress. Never waits."""
        self._engine.check()

    async def close(self) -> None:
        """End the engine, then every stream, with a goodbye. Open requests end with an error."""
        self._is_closing = True
        self._stream.publish(self._requests.fail_all(), self._report())
        self._stream.beat()
        await self._stop_metrics()
        await self._engine.close()
        await self._stream.close("the replica shuts down")

    def _obstacle(self, key: tuple[str, int], route: ReplicaRoute) -> str | None:
        """Why a request cannot be taken now; None if it can."""
        if self._is_closing:
            return "the replica shuts down"
        if not self._engine.is_ready:
            return "the engine core is being restarted"
        if not self._stream.has_gateway(route.gateway_id):
            return "no token stream to the gateway"
        # Serve sends a call again when it could not tell whether the first one arrived.
        if key in self._requests:
            return "the request is already here"
        return None

    def _on_steps(self, outputs: list[StepOutput]) -> None:
        for output in outputs:
            entries = self._requests.apply(output.entries)
            self._keep_promises(output.entries)
            self._stats = output.stats
            self._metrics.on_step(output.stats)
            self._load.see(output.stats, output.entries)
            self._kv.begin(self._engine.epoch)
            events = self._kv.add(output.kv_events)
            self._stream.publish(entries, self._report(), events, output.view)
        self._note_idle()

    def _keep_promises(self, entries: Iterable[TokenEntry]) -> None:
        """Whoever has begun here is counted in the engine's own figures."""
        for entry in entries:
            if entry.token_ids or entry.handoff or entry.finish_reason:
                self._promises.end(entry.request_id)

    def _expect_handoff(self, gateway_id: str, request: EngineRequest) -> None:
        assert request.handoff is not None, request.request_id
        assert self._info is not None
        self._engine.prefetch(request)
        # As many as the gateway counts: what is known, the first token, and a block to go on.
        num_tokens = len(request.prompt_token_ids) + 1
        num_blocks = -(-num_tokens // self._info.block_size) + 1
        self._promises.add(
            gateway_id,
            request.request_id,
            num_blocks=num_blocks,
            deadline_s=request.handoff.deadline_s,
        )

    def _kv_snapshot(self) -> tuple[KvSnapshot, ...]:
        self._kv.begin(self._engine.epoch)
        return self._kv.snapshot()

    def _on_core_lost(self, message: str) -> None:
        num_failed = len(self._requests)
        failed = self._requests.fail_all()
        self._totals.end_core(self._stats)
        self._metrics.on_core_lost()
        self._stats = EngineStats()
        self._stream.publish(failed, self._report())
        self._stream.beat()
        log.error("requests ended by lost core num=%d message=%s", num_failed, message)

    def _on_core_back(self) -> None:
        self._stats = _idle_stats(self._engine.info)
        self._metrics.describe(self._engine.info, served_name=self._identity.served_name)
        self._stream.beat()

    def _on_gateway_lost(self, gateway_id: str) -> None:
        keys = self._requests.keys_of(gateway_id)
        for key in keys:
            self._engine.cancel(*key)
        self._requests.drop(keys, reason="the gateway is gone")
        self._requests.forget_gateway(gateway_id)
        self._promises.forget_gateway(gateway_id)
        self._note_idle()

    def _report(self) -> EngineReport:
        return EngineReport(
            epoch=self._engine.epoch,
            outstanding_tokens=self._requests.outstanding_tokens,
            num_open_requests=len(self._requests),
            stats=self._totals.over(self._stats),
            admissions=self._promises.added_to(self._requests.admissions),
            fetch_token_s=_fetch_token_s(self._stats),
        )

    async def _report_metrics(self) -> None:
        while True:
            report = self._metrics.report(
                self._report(),
                num_coalesced_steps=self._stream.num_coalesced_steps,
                num_tasks=len(asyncio.all_tasks()),
                store=self._store_stats(),
            )
            self._stream.publish_metrics(report)
            if self._on_metrics is not None:
                self._on_metrics(report)
            await asyncio.sleep(METRICS_INTERVAL_S)

    async def _stop_metrics(self) -> None:
        await self._metrics.loop_lag.close()
        if self._metrics_task is not None:
            self._metrics_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._metrics_task

    def _note_idle(self) -> None:
        if not len(self._requests):
            self._engine.on_idle()


def _idle_stats(info: EngineInfo) -> EngineStats:
    """How large a core is that has not made a step yet, so that gateways know its room."""
    return EngineStats(
        max_num_seqs=info.max_num_seqs,
        num_blocks=info.num_blocks,
        num_free_blocks=info.num_blocks,
        block_size=info.block_size,
    )


def _fetch_token_s(stats: EngineStats) -> float:
    """What fetching a token's KV took so far, in seconds; 0.0 when nothing was fetched."""
    num_tokens = stats.tiers.fetched_blocks_total * stats.block_size
    return stats.tiers.fetch_s_total / num_tokens if num_tokens else 0.0
