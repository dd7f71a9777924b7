"""Requests from their submission until their last choice has ended (lecture 10: admit)."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from replicas.admission_queue import AdmissionQueue
from replicas.batch_scheduler import BatchScheduler
from replicas.beam_run import BeamRun, with_candidates
from replicas.config import SchedulerConfig
from replicas.engine_view import ViewRecorder
from replicas.private_root import with_private_root
from replicas.request import EngineRequest, FinishReason, Refusal, RefusalReason
from replicas.request_state import RequestState
from replicas.token_stream import TokenStream

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LiveRequest:
    """A request some of whose choices have not ended."""

    request: EngineRequest
    choices: list[RequestState]
    beams: BeamRun | None = None


class LiveRequests:
    """Who waits for an answer of this engine. What becomes of a request is told to `stream`."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        queue: AdmissionQueue,
        scheduler: BatchScheduler,
        stream: TokenStream,
        view: ViewRecorder,
        end_token_ids: frozenset[int],
    ) -> None:
        self._config = config
        self._queue = queue
        self._scheduler = scheduler
        self._stream = stream
        self._view = view
        self._end_token_ids = end_token_ids
        self._by_id: dict[str, LiveRequest] = {}
        self._early: list[RequestState] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def of(self, state: RequestState) -> LiveRequest:
        """The request that a choice belongs to."""
        return self._by_id[state.origin.request_id]

    def submit(
        self,
        request: EngineRequest,
        *,
        now: float,
        received_at: float,
        tokens_per_s: float,
        is_early: bool,
    ) -> None:
        """Take a request in, or refuse it; a newer attempt takes the place of an older one.

        tokens_per_s: how fast the engine has been working. is_early: while a step is computed,
        before the boundary at which it can be scheduled.
        """
        known = self._by_id.get(request.request_id)
        if known is not None and known.request.attempt >= request.attempt:
            log.warning("request repeated id=%s attempt=%d", request.request_id, request.attempt)
            return
        if known is not None:
            self.end_choices(request.request_id, known.request.attempt, FinishReason.CANCELLED, now)
        if not self._config.enable_prefix_caching:
            request = with_private_root(request)
        asked = request
        if request.sampling.beam is not None:
            request = with_candidates(request, self._end_token_ids)
        answer = self._queue.admit(
            request, now=now, tokens_per_s=tokens_per_s, received_at=received_at
        )
        if isinstance(answer, Refusal):
            self._scheduler.totals.count_end(FinishReason.REFUSED)
            self._stream.refused(request, answer)
            return
        live = self._by_id[request.request_id] = LiveRequest(request, answer)
        if request.sampling.beam is not None:
            live.beams = BeamRun(asked, answer, self._end_token_ids)
        if request.handoff is not None:
            self._scheduler.tiers.handoffs.arrived(answer[0], now)
        self._stream.admitted(request)
        if is_early:
            self._early += answer

    def reach_boundary(self, now: float) -> None:
        """A step is planned: those that came in during the one before can be scheduled."""
        for state in self._early:
            state.reach_boundary(now)
        self._early.clear()

    def end(self, state: RequestState, reason: FinishReason, now: float) -> None:
        """One choice is over."""
        self._scheduler.finish(state, reason, now)
        if self._view.is_watching:
            self._view.note_end(state, reason)
        live = self.of(state)
        if all(choice.finish_reason is not None for choice in live.choices):
            del self._by_id[state.origin.request_id]

    def end_choices(
        self,
        request_id: str,
        attempt: int,
        reason: FinishReason,
        now: float,
        *,
        only: int | None = None,
    ) -> None:
        """End a request's choices, or one of them; unknown and ended ones are normal events."""
        live = self._by_id.get(request_id)
        if live is None or live.request.attempt != attempt:
            return
        if only is not None and live.beams is not None:
            return
        for state in live.choices:
            if state.finish_reason is None and only in (None, state.choice):
                is_over_here = state.goes_on_elsewhere and reason is FinishReason.STOP_STRING
                how = FinishReason.HANDED_OFF if is_over_here else reason
                self.end(state, how, now)
                self._stream.ended(state, how)

    def expire(self, now: float) -> None:
        """Refuse what waited too long."""
        for state in self._queue.expired(now):
            self._expire(state, now)

    def check(self, held: Sequence[RequestState]) -> None:
        """Assert that `held` (waiting or running) are the choices neither over nor parked."""
        live = {id(state) for entry in self._by_id.values() for state in entry.choices}
        assert {id(state) for state in held} <= live, "a request is held that nobody waits for"
        ended = sum(
            state.finish_reason is not None
            for entry in self._by_id.values()
            for state in entry.choices
        )
        parked = sum(state.is_parked for entry in self._by_id.values() for state in entry.choices)
        assert len(held) == len(live) - ended - parked, (
            "a live choice is neither waiting nor running"
        )

    def _expire(self, state: RequestState, now: float) -> None:
        """Unless one of the request's choices has begun or ended."""
        live = self._by_id.get(state.origin.request_id)
        if live is None or any(choice.has_begun for choice in live.choices):
            return
        waited_s = now - state.arrived_at
        refusal = Refusal(
            RefusalReason.EXPIRED,
            f"the request waited {waited_s:.1f} s for its turn, longer than it allows",
            retry_after_s=max(1.0, waited_s),
        )
        for choice in live.choices:
            self.end(choice, FinishReason.REFUSED, now)
        self._stream.refused(state.origin, refusal)
