"""Takes the snapshot that goes out with every step: what the scheduler and its memory hold now."""

from replicas.admission_queue import AdmissionQueue
from replicas.batch_scheduler import BatchScheduler
from replicas.block_allocator import BlockAllocator
from replicas.config import SchedulerConfig
from replicas.engine_stats import EngineStats
from replicas.step_in_flight import StepInFlight


class StatsRecorder:
    """latest: the snapshot that went out last."""

    def __init__(
        self,
        scheduler: BatchScheduler,
        queue: AdmissionQueue,
        allocator: BlockAllocator,
        config: SchedulerConfig,
    ) -> None:
        self._scheduler = scheduler
        self._queue = queue
        self._allocator = allocator
        self._config = config
        self.latest = EngineStats(max_num_seqs=config.max_num_seqs, num_blocks=config.num_blocks)

    def record(
        self, done: StepInFlight | None, now: float, *, plan_s: float, deliver_s: float
    ) -> EngineStats:
        """The snapshot after a step, or without one if there was only something else to tell.

        now: seconds of the engine's clock. plan_s, deliver_s: what planning and delivering took.
        """
        totals = self._scheduler.totals
        allocator = self._allocator
        held_slots = allocator.num_held * self._config.block_size
        num_tokens = done.planned.batch.num_tokens if done else 0
        num_prompt_tokens = done.planned.num_prompt_tokens if done else 0
        self.latest = EngineStats(
            step=done.planned.batch.step if done else self.latest.step,
            at=now,
            max_num_seqs=self._config.max_num_seqs,
            num_blocks=self._config.num_blocks,
            block_size=self._config.block_size,
            num_running=self._scheduler.num_running,
            num_waiting=len(self._queue),
            num_waiting_tokens=self._queue.num_tokens,
            num_prompt_tokens_left=self._scheduler.num_prompt_tokens_left(),
            num_free_blocks=allocator.num_free,
            num_cached_blocks=allocator.num_cached,
            num_shared_blocks=allocator.num_shared,
            num_held_slots=held_slots,
            num_filled_slots=held_slots - self._scheduler.num_unfilled_slots(),
            num_rows=done.planned.batch.num_rows if done else 0,
            num_prefill_tokens=num_prompt_tokens,
            num_decode_tokens=num_tokens - num_prompt_tokens,
            plan_s=plan_s,
            run_s=done.run_s if done else 0.0,
            deliver_s=deliver_s,
            prompt_tokens_total=totals.prompt_tokens,
            computed_prompt_tokens_total=totals.computed_prompt_tokens,
            hit_tokens_total=totals.hit_tokens,
            generated_tokens_total=totals.generated_tokens,
            discarded_tokens_total=totals.discarded_tokens,
            preemptions_total=totals.preemptions,
            finished_total=totals.finished,
            cancelled_total=totals.cancelled,
            refused_total=totals.refused,
            num_low_watermark_steps_total=totals.low_watermark_steps,
            tiers=self._scheduler.tiers.stats(),
            speculation=self._scheduler.speculation.stats(),
            forks_total=totals.forks,
            copied_blocks_total=totals.copied_blocks,
            overtaking_prefills_total=totals.overtaking_prefills,
        )
        return self.latest
