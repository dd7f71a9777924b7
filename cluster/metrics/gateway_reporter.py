"""Once a second, gathers a gateway's figures and lets every other gateway have them."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

from cluster.dispatch.replica_directory import ReplicaDirectory
from cluster.handoff.pair_dispatcher import PairDispatcher
from cluster.metrics.gateway_metrics import GatewayMetrics
from cluster.metrics.loop_lag import LoopLag
from cluster.pools.pool_waking import WakingDispatcher
from router.replica_status import ReplicaState
from router.request_router import RequestRouter

REPORT_INTERVAL_S = 1.0
_SHOWN_STATES = tuple(state for state in ReplicaState if state is not ReplicaState.GONE)


@dataclass(frozen=True, slots=True)
class PoolSources:
    """waking: what holds requests. pairs: what shares them; None without a prefill pool."""

    waking: WakingDispatcher
    pairs: PairDispatcher | None = None


class GatewayReporter:
    """Reads what router and directory count themselves, so that nobody there counts twice.

    failovers: streams that moved on, by reason. pools: None for a gateway without any.
    """

    def __init__(
        self,
        metrics: GatewayMetrics,
        *,
        router: RequestRouter,
        directory: ReplicaDirectory,
        failovers: Mapping[str, int] = MappingProxyType({}),
        pools: PoolSources | None = None,
        interval_s: float = REPORT_INTERVAL_S,
    ) -> None:
        self._metrics = metrics
        self._router = router
        self._directory = directory
        self._failovers = failovers
        self._pools = pools
        self._interval_s = interval_s
        self._lag = LoopLag(
            metrics.figures.histogram("pagoda:gateway_loop_lag_seconds"), clock=metrics.clock
        )
        self._task: asyncio.Task[None] | None = None
        directory.hear_metrics(metrics.take)

    def start(self) -> None:
        """Report in the background."""
        self._lag.start()
        self._task = asyncio.create_task(self._report_on(), name="gateway metrics")

    async def close(self) -> None:
        """Stop reporting."""
        await self._lag.close()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def report(self) -> None:
        """Gather and send now."""
        figures, breaks = self._metrics.figures, self._directory.stream_breaks
        for reason, count in self._router.decisions.items():
            figures.counter("pagoda:router_decisions", reason).advance_to(count)
        self._report_index()
        self._report_pools()
        for reason, count in self._failovers.items():
            figures.counter("pagoda:failovers", reason).advance_to(count)
        figures.counter("pagoda:token_stream_reconnects").advance_to(breaks.num_resumed)
        figures.set("pagoda:gateway_tasks", len(asyncio.all_tasks()))
        figures.counter("pagoda:token_stream_losses").advance_to(breaks.num_lost)
        statuses = [(link.status(), link.stuck_s()) for link in self._directory.links.values()]
        self._metrics.set_replicas(
            {
                (status.replica_id, status.role, state): float(status.state is state)
                for status, _ in statuses
                for state in _SHOWN_STATES
            },
            {(status.replica_id, status.role): stuck_s for status, stuck_s in statuses},
        )
        self._directory.send_metric_report(self._metrics.publish())

    def _report_index(self) -> None:
        """What is known of the prefix caches, where anybody routes by it."""
        index = self._directory.index_figures
        if index is None:
            return
        figures = self._metrics.figures
        routed = self._router.routed_blocks
        figures.counter("pagoda:routed_prompt_blocks").advance_to(routed.num_prompt)
        figures.counter("pagoda:routed_hit_blocks").advance_to(routed.num_hit)
        figures.set("pagoda:prefix_index_blocks", index.num_blocks)
        figures.set("pagoda:prefix_index_inexact_replicas", index.num_inexact)
        figures.counter("pagoda:prefix_index_repairs", "gap").advance_to(index.gaps_total)
        figures.counter("pagoda:prefix_index_repairs", "reset").advance_to(index.resets_total)
        figures.counter("pagoda:prefix_index_repairs", "snapshot").advance_to(index.snapshots_total)
        figures.counter("pagoda:prefix_index_dropped_blocks").advance_to(index.dropped_blocks_total)

    def _report_pools(self) -> None:
        """Requests that wait for a pool, and those that two pools share."""
        if self._pools is None:
            return
        figures, pairs = self._metrics.figures, self._pools.pairs
        figures.set("pagoda:held_requests", self._pools.waking.num_held)
        if pairs is None:
            return
        for reason, count in pairs.decisions.items():
            figures.counter("pagoda:disaggregation_decisions", reason).advance_to(count)
        for outcome, count in pairs.results.items():
            figures.counter("pagoda:handoff_results", outcome).advance_to(count)
        figures.set("pagoda:promised_handoffs", pairs.num_promises)

    async def _report_on(self) -> None:
        while True:
            self.report()
            await asyncio.sleep(self._interval_s)
