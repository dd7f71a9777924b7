"""Makes the tree of spans of one call out of the moments that its meter kept.

Nothing is traced while tokens flow: all moments are known at the end, and a span is no more than
two of them. The engine's moments are in another machine's clock. They are moved so that the first
token there falls on the first token here, so the way of the token back counts as the engine's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.errors import RequestRefused
from cluster.metrics.call_meter import CallMeter, ChoiceTimes

# A call may ask for more choices than anybody looks at.
MAX_TRACED_CHOICES = 16

Attributes = Mapping[str, str | bool | int | float | Sequence[str]]


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a call. Moments are seconds of the gateway's monotonic clock.

    error: what went wrong, in one word; empty if nothing did.
    """

    name: str
    started_at: float
    ended_at: float
    attributes: Attributes = field(default_factory=dict)
    children: tuple["Span", ...] = ()
    error: str = ""


def call_spans(meter: CallMeter, *, model_name: str) -> Span:
    """The call, with gateway, router, and queue, prefill and decode of each choice below it."""
    children = [Span("gateway", meter.arrived_at, meter.submitted_at)]
    admitted_at = meter.ended_at if meter.admitted_at is None else meter.admitted_at
    children.append(Span("router", meter.submitted_at, admitted_at))
    for index, choice in enumerate(meter.choices[:MAX_TRACED_CHOICES]):
        children.extend(_engine_spans(index, choice))
        children.extend(_handoff_spans(index, choice))
    return Span(
        f"{meter.origin.operation} {model_name}",
        meter.arrived_at,
        meter.ended_at,
        _attributes(meter, model_name),
        tuple(children),
        _error_of(meter),
    )


def _engine_spans(index: int, choice: ChoiceTimes) -> list[Span]:
    timeline = choice.timeline
    if choice.first_at is None or timeline is None:
        return []
    first_token_at, scheduled_at = timeline.first_token_at, timeline.scheduled_at
    if first_token_at is None or scheduled_at is None:
        return []
    shift_s = choice.first_at - first_token_at
    received_at = timeline.arrived_at if timeline.received_at is None else timeline.received_at
    which = {"pagoda.choice": index}
    return [
        Span("queue", received_at + shift_s, scheduled_at + shift_s, which),
        Span(
            "prefill",
            scheduled_at + shift_s,
            choice.first_at,
            {**which, "pagoda.cached_tokens": choice.num_cached_tokens},
        ),
        Span(
            "decode",
            choice.first_at,
            choice.last_at,
            {
                **which,
                "gen_ai.usage.output_tokens": choice.num_tokens,
                "pagoda.preemptions": timeline.num_preemptions,
            },
        ),
    ]


def _handoff_spans(index: int, choice: ChoiceTimes) -> list[Span]:
    """From the first token until another replica had what it needs to go on."""
    if choice.handoff is None or choice.first_at is None:
        return []
    ended_at, news = choice.handoff
    attributes: Attributes = {
        "pagoda.choice": index,
        "pagoda.handoff.outcome": news.outcome,
        "pagoda.handoff.transport": news.transport,
        "pagoda.handoff.tokens": news.num_tokens,
        "pagoda.handoff.bytes": news.num_bytes,
    }
    return [Span("handoff", min(choice.first_at, ended_at), ended_at, attributes)]


def _attributes(meter: CallMeter, model_name: str) -> dict[str, str | int | float | list[str]]:
    """By OpenTelemetry's conventions for generative AI."""
    request = meter.requests[0]
    sampling = request.sampling
    return {
        "gen_ai.operation.name": meter.origin.operation,
        "gen_ai.provider.name": "pagoda",
        "gen_ai.request.model": model_name,
        "gen_ai.response.model": model_name,
        "gen_ai.response.id": meter.origin.response_id,
        "gen_ai.response.finish_reasons": [
            choice.finished_reason or "error" for choice in meter.choices
        ],
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.choice.count": request.num_choices,
        "gen_ai.usage.input_tokens": sum(len(r.prompt_token_ids) for r in meter.requests),
        "gen_ai.usage.output_tokens": sum(choice.num_tokens for choice in meter.choices),
    }


def _error_of(meter: CallMeter) -> str:
    if meter.error is None:
        return ""
    if meter.was_left:
        return "client_left"
    if isinstance(meter.error, RequestRefused):
        return meter.error.refusal.reason.value
    return type(meter.error).__name__
