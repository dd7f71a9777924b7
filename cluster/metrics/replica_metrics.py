"""A replica's own figures: the engine's, step by step, and those of the process around it."""

import time
from collections.abc import Callable

from cluster.metrics.figures import Figures
from cluster.metrics.loop_lag import LoopLag
from cluster.metrics.metric_report import MetricReport
from cluster.metrics.speculation_metrics import show_speculation
from cluster.metrics.tier_metrics import show_store, show_tiers
from cluster.streams.stream_codec import EngineReport
from kvstore.store_stats import StoreStats
from replicas.engine_info import EngineInfo
from replicas.engine_stats import EngineStats

# Which of the engine's totals a counter shows. All prompt tokens are looked up (prefix queries).
_TOTALS = (
    ("vllm:prompt_tokens", "prompt_tokens_total"),
    ("vllm:generation_tokens", "generated_tokens_total"),
    ("vllm:prompt_tokens_cached", "hit_tokens_total"),
    ("vllm:prefix_cache_queries", "prompt_tokens_total"),
    ("vllm:prefix_cache_hits", "hit_tokens_total"),
    ("vllm:num_preemptions", "preemptions_total"),
    ("pagoda:computed_prompt_tokens", "computed_prompt_tokens_total"),
    ("pagoda:discarded_tokens", "discarded_tokens_total"),
    ("pagoda:low_watermark_steps", "num_low_watermark_steps_total"),
    ("pagoda:forks", "forks_total"),
    ("pagoda:copied_blocks", "copied_blocks_total"),
    ("pagoda:overtaking_prefills", "overtaking_prefills_total"),
)


class ReplicaMetrics:
    """Observes every step; a report shows all of it. replica_id, pool: labels of every series."""

    def __init__(
        self,
        *,
        replica_id: str,
        pool: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replica_id = replica_id
        self._pool = pool
        self._model_name = ""
        self._figures = Figures("replica")
        # A process that was started again under the same name must not seem older than the last.
        self._number = time.time_ns() // 1_000_000
        self._last_step = 0
        histogram = self._figures.histogram
        self._step_tokens = histogram("vllm:iteration_tokens_total")
        self._occupancy = histogram("pagoda:batch_occupancy_ratio")
        self._plan = histogram("pagoda:step_seconds", "plan")
        self._run = histogram("pagoda:step_seconds", "run")
        self._deliver = histogram("pagoda:step_seconds", "deliver")
        self.loop_lag = LoopLag(histogram("pagoda:replica_loop_lag_seconds"), clock=clock)

    def describe(self, info: EngineInfo, *, served_name: str) -> None:
        """An engine core is ready: what it is, and how long each phase of its start took.

        served_name: what clients call the model; empty for its own name.
        """
        self._model_name = served_name or info.model
        self._figures.set_all(
            "pagoda:startup_phase_seconds", {(name,): seconds for name, seconds in info.phases}
        )
        shape = (str(info.block_size), str(info.num_blocks), info.dtype)
        self._figures.set_all("vllm:cache_config_info", {shape: 1.0})

    def on_step(self, stats: EngineStats) -> None:
        """Observe one step; a snapshot without a step of its own is not one."""
        if stats.step == self._last_step:
            return
        self._last_step = stats.step
        self._step_tokens.observe(stats.num_prefill_tokens + stats.num_decode_tokens)
        self._occupancy.observe(stats.occupancy)
        self._plan.observe(stats.plan_s)
        self._run.observe(stats.run_s)
        self._deliver.observe(stats.deliver_s)

    def on_core_lost(self) -> None:
        """The next core counts its steps from one."""
        self._last_step = 0

    def report(
        self,
        report: EngineReport,
        *,
        num_coalesced_steps: int,
        num_tasks: int,
        store: StoreStats | None = None,
    ) -> MetricReport:
        """All figures now. report: what the replica says of itself, totals over all its cores.

        num_tasks: of its event loop. store: what its block store's clients say, over all of them;
        None without a store.
        """
        self._show_engine(report.stats)
        if store is not None:
            show_store(self._figures, store)
        counter = self._figures.counter
        counter("pagoda:token_stream_coalesced_steps").advance_to(num_coalesced_steps)
        counter("pagoda:engine_core_restarts").advance_to(max(0, report.epoch - 1))
        self._figures.set("pagoda:replica_open_requests", report.num_open_requests)
        self._figures.set("pagoda:replica_tasks", num_tasks)
        self._figures.set("pagoda:outstanding_tokens", report.outstanding_tokens)
        self._number += 1
        identity = (self._replica_id, self._pool, self._model_name)
        return MetricReport("replica", identity, self._number, self._figures.series())

    def _show_engine(self, stats: EngineStats) -> None:
        counter, show = self._figures.counter, self._figures.set
        for name, total in _TOTALS:
            counter(name).advance_to(getattr(stats, total))
        show_tiers(self._figures, stats)
        show_speculation(self._figures, stats.speculation)
        for how in ("finished", "cancelled", "refused"):
            total = getattr(stats, f"{how}_total")
            counter("pagoda:engine_requests_ended", how).advance_to(total)
        show("vllm:num_requests_running", stats.num_running)
        show("vllm:num_requests_waiting", stats.num_waiting)
        show("pagoda:waiting_tokens", stats.num_waiting_tokens)
        num_held = stats.num_blocks - stats.num_free_blocks
        show("vllm:kv_cache_usage_perc", num_held / stats.num_blocks if stats.num_blocks else 0.0)
        show("pagoda:kv_blocks", stats.num_free_blocks - stats.num_cached_blocks, "empty")
        show("pagoda:kv_blocks", stats.num_cached_blocks, "cached")
        show("pagoda:kv_blocks", num_held - stats.num_shared_blocks, "private")
        show("pagoda:kv_blocks", stats.num_shared_blocks, "shared")
        held_slots = stats.num_held_slots
        waste = 1.0 - stats.num_filled_slots / held_slots if held_slots else 0.0
        show("pagoda:kv_waste_ratio", waste)
