"""Times one generation call at its gateway, token by token, and turns it into observations.

Two clocks meet here and are never mixed: the gateway's own, and the engine's, whose moments come
as a Timeline with the first token and with the end. Only differences are observed.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from cluster.errors import NoReplica, RequestRefused
from cluster.metrics.figures import Counter, Figures
from replicas.handoff import HandoffNews
from replicas.request import EngineRequest, Timeline, TokenEntry

FINISHED_REASONS = ("stop", "length", "abort", "error")
REJECTION_REASONS = ("queue_full", "prompt_too_long", "never_fits", "expired", "no_replica")
TTFT_PARTS = ("gateway", "scheduling_delay", "queueing", "prefill")


@dataclass(frozen=True, slots=True)
class CallOrigin:
    """Where a call came from.

    arrived_at: when it reached the gateway, in seconds of the observers' clock. operation: chat or
    text_completion. response_id: the id that its client gets. trace_headers: the client's W3C
    trace context, empty if it sent none.
    """

    arrived_at: float
    operation: str = "text_completion"
    response_id: str = ""
    trace_headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class ChoiceTimes:
    """One choice at the gateway; moments in seconds of its clock.

    timeline: the engine's moments, in its own clock, as far as they are known. handoff: when
    another replica went on with it, and how.
    """

    request: EngineRequest
    first_at: float | None = None
    last_at: float = 0.0
    num_tokens: int = 0
    num_cached_tokens: int = 0
    timeline: Timeline | None = None
    finished_reason: str | None = None
    handoff: tuple[float, HandoffNews] | None = None


class CallObservers:
    """The instruments that calls are observed with; one set for each gateway."""

    def __init__(self, figures: Figures, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.figures = figures
        self.num_open = 0
        histogram = figures.histogram
        self.ttft = histogram("vllm:time_to_first_token_seconds")
        self.itl = histogram("vllm:inter_token_latency_seconds")
        self.tpot = histogram("vllm:request_time_per_output_token_seconds")
        self.e2e = histogram("vllm:e2e_request_latency_seconds")
        self.queue = histogram("vllm:request_queue_time_seconds")
        self.prefill = histogram("vllm:request_prefill_time_seconds")
        self.decode = histogram("vllm:request_decode_time_seconds")
        self.inference = histogram("vllm:request_inference_time_seconds")
        self.parts = {part: histogram("pagoda:ttft_part_seconds", part) for part in TTFT_PARTS}
        self.prompt_tokens = histogram("vllm:request_prompt_tokens")
        self.output_tokens = histogram("vllm:request_generation_tokens")
        self.longest_output = histogram("vllm:request_max_num_generation_tokens")
        self.max_tokens = histogram("vllm:request_params_max_tokens")
        self.choices = histogram("vllm:request_params_n")
        self.preemptions = histogram("vllm:request_num_preemptions")
        self.computed = histogram("vllm:request_prefill_kv_computed_tokens")
        self.cancelled = figures.counter("pagoda:cancelled_calls")
        self.ends = _counters(figures, "vllm:request_success", FINISHED_REASONS)
        self.rejections = _counters(figures, "vllm:admission_rejections", REJECTION_REASONS)

    def reject(self, reason: str) -> None:
        """A call was turned away."""
        counter = self.rejections.get(reason)
        if counter is None:
            counter = self.figures.counter("vllm:admission_rejections", reason)
            self.rejections[reason] = counter
        counter.add()


class CallMeter:
    """A context manager around the generation of one call; how it is left says how it ended.

    on_end: told once, with this meter, when everything of the call is known.
    """

    def __init__(
        self,
        observers: CallObservers,
        requests: Sequence[EngineRequest],
        *,
        origin: CallOrigin,
        on_end: Callable[["CallMeter"], None],
    ) -> None:
        self.origin = origin
        self.requests = requests
        self.arrived_at = origin.arrived_at
        self.submitted_at = origin.arrived_at
        self.admitted_at: float | None = None
        self.ended_at = origin.arrived_at
        self.error: BaseException | None = None
        self.was_given_up = False
        self.choices = [
            ChoiceTimes(request) for request in requests for _ in range(request.num_choices)
        ]
        self._observers = observers
        self._requests = requests
        self._on_end = on_end

    def __enter__(self) -> "CallMeter":
        self.submitted_at = self._observers.clock()
        self._observers.num_open += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.ended_at = self._observers.clock()
        self._observers.num_open -= 1
        self.error = error
        self._count_end(error)
        self._on_end(self)

    @property
    def was_left(self) -> bool:
        """Whether the client left before the end."""
        is_cut = isinstance(self.error, asyncio.CancelledError | ConnectionError)
        return is_cut and not self.was_given_up

    def note_admitted(self) -> None:
        """Every prompt of the call is in an engine."""
        self.admitted_at = self._observers.clock()

    def note_entry(self, index: int, entry: TokenEntry, num_tokens: int) -> None:
        """A choice has news; num_tokens: its output tokens with them. Called for every token."""
        now = self._observers.clock()
        choice = self.choices[index]
        choice.num_tokens = num_tokens
        if entry.timeline is not None:
            choice.timeline = entry.timeline
        if choice.first_at is None:
            choice.first_at = now
            choice.num_cached_tokens = entry.num_cached_tokens
            self._observe_first(choice, now)
        elif entry.token_ids:
            self._observers.itl.observe(now - choice.last_at)
        choice.last_at = now

    def note_handoff(self, index: int, news: HandoffNews) -> None:
        """Another replica goes on with a choice: with the blocks it adopted, or without."""
        self.choices[index].handoff = (self._observers.clock(), news)

    def note_end(self, index: int, finished_reason: str) -> None:
        """A choice ended, as its client hears it."""
        choice = self.choices[index]
        choice.finished_reason = finished_reason
        self._observers.ends[finished_reason].add()
        self._observe_end(choice)

    def _observe_first(self, choice: ChoiceTimes, now: float) -> None:
        observers = self._observers
        ttft_s = now - self.arrived_at
        observers.ttft.observe(ttft_s)
        parts = first_token_parts(choice.timeline, ttft_s)
        if parts is not None:
            for part, span_s in parts.items():
                observers.parts[part].observe(span_s)
            observers.queue.observe(parts["queueing"])
            observers.prefill.observe(parts["prefill"])
        num_prompt_tokens = len(choice.request.prompt_token_ids)
        observers.prompt_tokens.observe(num_prompt_tokens)
        observers.computed.observe(num_prompt_tokens - choice.num_cached_tokens)

    def _observe_end(self, choice: ChoiceTimes) -> None:
        observers = self._observers
        observers.e2e.observe(choice.last_at - self.arrived_at)
        observers.output_tokens.observe(choice.num_tokens)
        first_at, timeline = choice.first_at, choice.timeline
        if first_at is None or timeline is None or timeline.first_token_at is None:
            return
        # The engine does not time the end of a choice that a stop string ended.
        decode_s = choice.last_at - first_at
        if timeline.finished_at is not None:
            decode_s = timeline.finished_at - timeline.first_token_at
        observers.decode.observe(decode_s)
        if timeline.scheduled_at is not None:
            observers.inference.observe(timeline.first_token_at - timeline.scheduled_at + decode_s)
        observers.preemptions.observe(timeline.num_preemptions)
        if choice.num_tokens > 1:
            observers.tpot.observe((choice.last_at - first_at) / (choice.num_tokens - 1))

    def _count_end(self, error: BaseException | None) -> None:
        observers = self._observers
        if isinstance(error, RequestRefused):
            observers.reject(error.refusal.reason.value)
            return
        if isinstance(error, NoReplica):
            observers.reject("no_replica")
            return
        observers.cancelled.add(self.was_left)
        for choice in self.choices:
            if choice.finished_reason is None:
                choice.finished_reason = "abort" if self.was_left else "error"
                observers.ends[choice.finished_reason].add()
        for request in self.requests:
            observers.choices.observe(request.num_choices)
            observers.max_tokens.observe(request.sampling.max_tokens)
            longest = max(c.num_tokens for c in self.choices if c.request is request)
            observers.longest_output.observe(longest)


def first_token_parts(timeline: Timeline | None, ttft_s: float) -> dict[str, float] | None:
    """A time to first token as the sum of its parts (lecture 10, 10.6), in seconds.

    None where the engine did not say when things happened.
    """
    if timeline is None or timeline.first_token_at is None or timeline.scheduled_at is None:
        return None
    received_at = timeline.arrived_at if timeline.received_at is None else timeline.received_at
    return {
        "gateway": max(0.0, ttft_s - (timeline.first_token_at - received_at)),
        "scheduling_delay": max(0.0, timeline.arrived_at - received_at),
        "queueing": timeline.scheduled_at - timeline.arrived_at,
        "prefill": timeline.first_token_at - timeline.scheduled_at,
    }


def _counters(figures: Figures, name: str, labels: Sequence[str]) -> dict[str, Counter]:
    """Counters that can be seen before they count anything."""
    return {label: figures.counter(name, label) for label in labels}
