"""Conducts the five jobs of a serving engine: admit, allocate, batch, run, stream (lecture 10)."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from replicas.admission_queue import AdmissionQueue
from replicas.batch import Sampled
from replicas.batch_scheduler import BatchScheduler
from replicas.block_allocator import BlockAllocator
from replicas.config import SchedulerConfig
from replicas.engine_commands import (
    Cancel,
    ClearCache,
    Command,
    FinishChoice,
    Inbox,
    Prefetch,
    Submit,
    Watch,
    is_awaited_elsewhere,
)
from replicas.engine_stats import EngineStats
from replicas.engine_view import EngineView, ViewRecorder, step_rows
from replicas.held_events import HeldEvents
from replicas.live_requests import LiveRequests
from replicas.memory.block_tiers import TierSetup
from replicas.policies import waiting_order
from replicas.policies.eviction import eviction_order
from replicas.private_root import with_private_root
from replicas.request import FinishReason
from replicas.request_state import RequestState
from replicas.runner import Runner
from replicas.speculation.drafter_choice import drafter_of
from replicas.speculation.speculation import Speculation
from replicas.stats_recorder import StatsRecorder
from replicas.step_in_flight import StepInFlight
from replicas.step_output import StepOutput
from replicas.step_pipeline import pipeline_of
from replicas.step_plan import PlannedStep
from replicas.token_stream import TokenStream, end_of, logprob_of

log = logging.getLogger(__name__)

# Weight of the newest step in the running estimate of tokens per second.
RATE_SMOOTHING = 0.1


class Engine:
    """One model's loop over steps. Not thread-safe, but for its inbox.

    clock: monotonic seconds. end_token_ids: the model's own end tokens. thread: where the runner
    was built, for async_scheduling; the engine ends it. tiers: what blocks cost and who moves them;
    by default host memory alone, where the settings give any.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        runner: Runner,
        *,
        clock: Callable[[], float],
        end_token_ids: frozenset[int] = frozenset(),
        thread: ThreadPoolExecutor | None = None,
        tiers: TierSetup | None = None,
    ) -> None:
        self.inbox = Inbox(clock)
        self.config = config
        self._clock = clock
        self._end_token_ids = end_token_ids
        self._allocator = BlockAllocator(
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            order=eviction_order(config.eviction_policy),
        )
        self._queue = AdmissionQueue(config, waiting_order(config.scheduling_policy))
        tiers = tiers or TierSetup.without_store(
            block_size=config.block_size, block_bytes=1, clock=clock
        )
        self._pipeline = pipeline_of(
            runner, thread, is_threaded=config.async_scheduling, stirred=self.inbox.urgent
        )
        self._speculation = Speculation(
            config.speculation, drafter_of(config, runner, self._pipeline, clock)
        )
        self._scheduler = BatchScheduler(
            config,
            self._queue,
            self._allocator,
            tiers,
            self._speculation,
            can_pause=self._pipeline.can_be_overtaken,
        )
        self._stream = TokenStream()
        self._view = ViewRecorder(clock)
        self._live = LiveRequests(
            config,
            queue=self._queue,
            scheduler=self._scheduler,
            stream=self._stream,
            view=self._view,
            end_token_ids=end_token_ids,
        )
        self._events = HeldEvents()
        self._planned_step = 0
        self._computed_step = 0
        self._tokens_per_s = 0.0
        self._has_news = False
        self._recorder = StatsRecorder(self._scheduler, self._queue, self._allocator, config)

    @property
    def has_work(self) -> bool:
        """Whether another step would do anything, or is going to."""
        in_flight = self._pipeline.num_in_flight > 0
        tiers = self._scheduler.tiers
        return bool(self._live) or in_flight or tiers.has_copies or tiers.handoffs.is_polling

    @property
    def is_waiting(self) -> bool:
        """Whether no step is under way: if there is work, it waits for the store or for time."""
        return self._pipeline.num_in_flight == 0

    @property
    def stats(self) -> EngineStats:
        """The snapshot that went out with the last step."""
        return self._recorder.latest

    def step(self) -> StepOutput | None:
        """Plan one step, start it, and deliver the tokens of the one before; None when idle.

        While a step computes it may do less: take what is urgent, and say what came of it. Raises
        whatever the runner raised; the engine is of no use after that.
        """
        if not self._pipeline.wait_for_planning_time():
            return self._tend()
        # A step with guesses says only at its end what the next one has to compute.
        done = self._take() if self._pipeline.decides_next else None
        started = self._clock()
        self._live.reach_boundary(started)
        self._admit(self.inbox.drain(), started)
        planned = self._scheduler.next_batch(started)
        planned_at = self._clock()
        if planned is not None:
            self._planned_step = planned.batch.step
            self._pipeline.start(planned)
        if done is not None:
            self._speculation.note_overhead(done.commit_s + self._clock() - started)
        if self._scheduler.overtaking.is_deferring:
            self._overtake(started)
        # They wait for the step that computes their blocks.
        self._events.hold(self._allocator.drain_events(), step=self._planned_step)
        if self._pipeline.num_in_flight and (planned is None or self._pipeline.is_full):
            done = self._take()
        return self._deliver(done, plan_s=planned_at - started)

    def run_until_idle(self) -> list[StepOutput]:
        """Step until no request is left; for callers without a loop of their own."""
        outputs = []
        while (output := self.step()) is not None or self.has_work:
            if output is not None:
                outputs.append(output)
        return outputs

    def check(self) -> None:
        """Assert the invariants of every part, and that exactly the live choices are held."""
        self._scheduler.check()
        self._live.check((*self._scheduler.running, *self._queue))

    def close(self) -> None:
        """End the runner; open requests are dropped without another word."""
        self._pipeline.close()

    # Admit.

    def _tend(self) -> StepOutput | None:
        """Take what is urgent while a step is computed.

        What nobody elsewhere waits for is told after the step: an output counts as one.
        """
        now = self._clock()
        commands = self.inbox.drain()
        self._admit(commands, now, is_early=True)
        self._scheduler.tiers.look_ahead(self._queue, now)
        done = self._take_overtaker()
        self._overtake(now)
        if done is None and not any(is_awaited_elsewhere(command) for _, command in commands):
            return None
        return self._deliver(done, plan_s=0.0)

    def _overtake(self, now: float) -> None:
        """Have prompts computed between the layers of the step under way, if any can be."""
        under_way = self._pipeline.overtakable()
        if under_way is None:
            return
        planned: Sequence[PlannedStep] = ()
        try:
            planned = self._scheduler.next_overtakers(under_way, now, self._pipeline.hold)
        finally:
            self._pipeline.overtake(planned)
        if planned:
            self._live.reach_boundary(now)
            self._planned_step = planned[-1].batch.step
            self._events.hold(self._allocator.drain_events(), step=self._planned_step)

    def _admit(
        self, commands: list[tuple[float, Command]], now: float, *, is_early: bool = False
    ) -> None:
        for received_at, command in commands:
            match command:
                case Submit(request):
                    self._live.submit(
                        request,
                        now=now,
                        received_at=received_at,
                        tokens_per_s=self._tokens_per_s,
                        is_early=is_early,
                    )
                case Prefetch(request):
                    named = (
                        request if self.config.enable_prefix_caching else with_private_root(request)
                    )
                    self._scheduler.tiers.handoffs.prefetch(named, now)
                case Cancel(request_id, attempt):
                    self._live.end_choices(request_id, attempt, FinishReason.CANCELLED, now)
                case FinishChoice(request_id, attempt, choice):
                    self._live.end_choices(
                        request_id, attempt, FinishReason.STOP_STRING, now, only=choice
                    )
                case ClearCache():
                    self._allocator.clear_cache()
                    self._scheduler.tiers.clear()
                case Watch(seconds):
                    self._view.watch(seconds)
                case _:
                    self._scheduler.tiers.take_answer(command, now)
                    self._has_news = True
        self._live.expire(now)
        self._tell_of_handoffs(now)

    def _tell_of_handoffs(self, now: float) -> None:
        for handed in self._scheduler.tiers.handoffs.take_news(now):
            if handed.request.finish_reason is not None:
                continue
            self._stream.handed(handed.request, handed.news)
            if handed.is_over:
                self._live.end(handed.request, FinishReason.HANDED_OFF, now)
                self._stream.ended(handed.request, FinishReason.HANDED_OFF)

    # Stream.

    def _take(self) -> StepInFlight:
        """A step's result, taken in."""
        done = self._pipeline.take()
        for step in (done, *done.overtakers):
            self._note_computed(step)
        started = self._clock()
        self._commit(done, started)
        done.commit_s = self._clock() - started
        return done

    def _take_overtaker(self) -> StepInFlight | None:
        """The next result of a step that passed the one under way, taken in, once there is one.

        It counts as computed with the step that it passed, which was planned before it.
        """
        done = self._pipeline.take_overtaker()
        if done is not None:
            started = self._clock()
            self._commit(done, started)
            done.commit_s = self._clock() - started
        return done

    def _note_computed(self, done: StepInFlight) -> None:
        assert done.sampled is not None
        batch = done.planned.batch
        self._computed_step = batch.step
        self._scheduler.tiers.note_step(batch, run_s=done.run_s, move_s=done.sampled.move_s)

    def _deliver(self, done: StepInFlight | None, *, plan_s: float) -> StepOutput | None:
        started = self._clock()
        entries = self._stream.drain()
        is_idle = self._pipeline.num_in_flight == 0
        computed_step = self._planned_step if is_idle else self._computed_step
        events = self._events.release(computed_step=computed_step)
        view = self._take_view(done) if self._view.is_watching else None
        # An output counts as a step to whoever judges progress, so one without a step is due only
        # when there is nothing to do.
        has_news = self._has_news and not self.has_work
        if done is None and not entries and not events and view is None and not has_news:
            return None
        # What waits for time alone may end without a step or an answer, and has to be told, too.
        self._has_news = self._scheduler.tiers.handoffs.is_polling
        now = self._clock()
        deliver_s = now - started + (done.commit_s if done is not None else 0.0)
        stats = self._recorder.record(done, now, plan_s=plan_s, deliver_s=deliver_s)
        return StepOutput(stats, entries, events, view)

    def _take_view(self, done: StepInFlight | None) -> EngineView | None:
        # A view counts as a step to whoever judges progress, so work without a step gives none.
        if done is None and self.has_work:
            return None
        return self._view.take(self._allocator.states, is_idle=not self.has_work)

    def _commit(self, done: StepInFlight, now: float) -> None:
        """Append the sampled tokens; those of requests that ended meanwhile are dropped."""
        assert done.sampled is not None
        batch = done.planned.batch
        if not batch.num_rows:
            return
        if self._view.is_watching:
            rows = step_rows(done.planned)
            self._view.note_step(rows, started_at=now - done.run_s, ended_at=now)
        self._speculation.note_step(batch.num_tokens, seconds=done.run_s - done.sampled.move_s)
        first = 0
        for state in done.planned.sampling:
            draft = done.planned.drafts.get(state, ())
            if state.finish_reason is not None:
                pass
            elif state.sampling.beam is not None:
                self._commit_beam(state, done.sampled, first, now)
            else:
                self._commit_tokens(state, draft, done.sampled, first, now)
            first += 1 + len(draft)
        rate = (batch.num_tokens - done.planned.num_draft_tokens) / max(done.run_s, 1e-9)
        self._tokens_per_s += (rate - self._tokens_per_s) * (
            RATE_SMOOTHING if self._tokens_per_s else 1.0
        )

    def _commit_tokens(
        self, state: RequestState, draft: tuple[int, ...], sampled: Sampled, first: int, now: float
    ) -> None:
        """A choice goes on by a token, and by the guesses before it that hold; or ends with one."""
        token_ids = sampled.token_ids[first : first + 1 + len(draft)].tolist()
        if draft:
            del token_ids[1 + self._scheduler.verify(state, draft, token_ids) :]
        end: FinishReason | None = None
        for num_taken, token_id in enumerate(token_ids, start=1):
            self._scheduler.append_token(state, token_id)
            end = end_of(state, token_id, self._end_token_ids)
            if end is not None:
                del token_ids[num_taken:]
                break
        if state.timeline.first_token_at is None:
            state.mark(first_token_at=now)
            if self._view.is_watching:
                self._view.note_first_token(state, now)
        if end is not None:
            self._live.end(state, end, now)
        num_logprobs = state.origin.sampling.num_logprobs
        found = (
            logprob_of(sampled, first + index, num_logprobs) for index in range(len(token_ids))
        )
        logprobs = tuple(each for each in found if each is not None)
        self._stream.tokens(state, token_ids, end, logprobs)

    def _commit_beam(self, state: RequestState, sampled: Sampled, sample: int, now: float) -> None:
        """A beam's step was computed; the search goes on, or is over, when all of them are."""
        live = self._live.of(state)
        beams = live.beams
        assert beams is not None
        if not beams.note(state, sampled, sample):
            return
        live.choices[0].mark(first_token_at=now)
        beams.advance(self._scheduler, now)
        if beams.outputs is None:
            self._stream.admitted(live.request)
            return
        for choice, output in zip(live.choices, beams.outputs, strict=False):
            choice.mark(first_token_at=now)
            self._live.end(choice, output.reason, now)
            self._stream.output(choice, output)
        # A tiny vocabulary may give fewer outputs than beams.
        for choice in live.choices[len(beams.outputs) :]:
            self._live.end(choice, FinishReason.LENGTH, now)
            self._stream.ended(choice, FinishReason.LENGTH)
