"""Turns the house's nouns into messages of the token stream and back, field by field, no pickle."""

import typing
from dataclasses import dataclass, fields

from cluster.live.live_codec import decode_view, encode_view
from cluster.wire import token_stream_pb2 as wire
from replicas.engine_stats import EngineStats
from replicas.engine_view import EngineView
from replicas.handoff import HandoffIn, HandoffNews, HandoffOutcome
from replicas.request import (
    EngineRequest,
    FinishReason,
    KvEvent,
    Refusal,
    RefusalReason,
    SamplingParams,
    Timeline,
    TokenEntry,
    TokenLogprob,
)
from router.prefixes.kv_events import KvSnapshot
from router.replica_status import GatewayAdmission

PROTOCOL_VERSION = 1
METHOD = "/pagoda.token_stream.v1.TokenStream/Attach"
SERVICE = "pagoda.token_stream.v1.TokenStream"
SECRET_METADATA_KEY = "pagoda-secret"

# What lies below the device's blocks and what guesses gain is told by metrics; no gateway decides
# by it.
_TOLD_BY_METRICS = ("tiers", "speculation", "overtaking_prefills_total")
_STATS_FIELDS = tuple(
    field.name for field in fields(EngineStats) if field.name not in _TOLD_BY_METRICS
)
_FINISH_TO_WIRE = {
    FinishReason.STOP: wire.FINISH_REASON_STOP,
    FinishReason.LENGTH: wire.FINISH_REASON_LENGTH,
    FinishReason.STOP_STRING: wire.FINISH_REASON_STOP_STRING,
    FinishReason.CANCELLED: wire.FINISH_REASON_CANCELLED,
    FinishReason.ERROR: wire.FINISH_REASON_ERROR,
    FinishReason.REFUSED: wire.FINISH_REASON_REFUSED,
    FinishReason.HANDED_OFF: wire.FINISH_REASON_HANDED_OFF,
}
_FINISH_FROM_WIRE = {number: reason for reason, number in _FINISH_TO_WIRE.items()}


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What a replica says of itself with every step and heartbeat.

    epoch: counts its engine cores, from 1; totals in `stats` go on from one to the next.
    outstanding_tokens: prompt and output tokens still to be computed for its open requests.
    admissions: tokens of work that it admitted from each attached gateway. fetch_token_s: seconds
    to fetch a token's KV from below instead of computing it, as measured; 0.0 if unknown.
    """

    epoch: int = 0
    outstanding_tokens: int = 0
    num_open_requests: int = 0
    stats: EngineStats = EngineStats()
    admissions: tuple[GatewayAdmission, ...] = ()
    fetch_token_s: float = 0.0


@dataclass(frozen=True, slots=True)
class KvEventBatch:
    """Consecutive prefix-cache events; event i has number first_number + i within its epoch."""

    epoch: int
    first_number: int
    events: tuple[KvEvent, ...]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A replica's sign of life: ages in seconds, at the moment of sending.

    metric_reports: what is new of the replica's own figures and of the other gateways', as they
    are on the wire, since a replica only passes most of them on.
    """

    last_step_age_s: float
    has_work: bool
    is_accepting: bool
    report: EngineReport
    metric_reports: tuple[wire.MetricReport, ...] = ()


@dataclass(frozen=True, slots=True)
class StepMessage:
    """One step, or several coalesced ones, as it arrives at a gateway.

    kv_events happened after kv_snapshots.
    """

    sequence: int
    entries: tuple[TokenEntry, ...]
    report: EngineReport
    kv_events: tuple[KvEventBatch, ...]
    view: EngineView | None = None
    kv_snapshots: tuple[KvSnapshot, ...] = ()


def encode_entry(entry: TokenEntry) -> wire.Entry:
    """One choice's news of a step."""
    message = wire.Entry(
        request_id=entry.request_id,
        attempt=entry.attempt,
        choice=entry.choice,
        index=entry.index,
        token_ids=entry.token_ids,
        stop_token_id=entry.stop_token_id,
        num_cached_tokens=entry.num_cached_tokens,
    )
    if entry.finish_reason is not None:
        message.finish_reason = _FINISH_TO_WIRE[entry.finish_reason]
    if entry.refusal is not None:
        message.refusal.CopyFrom(
            wire.Refusal(
                reason=entry.refusal.reason.value,
                message=entry.refusal.message,
                retry_after_s=entry.refusal.retry_after_s,
            )
        )
    if entry.timeline is not None:
        message.timeline.CopyFrom(
            wire.Timeline(
                arrived_at=entry.timeline.arrived_at,
                scheduled_at=entry.timeline.scheduled_at,
                first_token_at=entry.timeline.first_token_at,
                finished_at=entry.timeline.finished_at,
                received_at=entry.timeline.received_at,
                num_preemptions=entry.timeline.num_preemptions,
            )
        )
    if entry.handoff is not None:
        message.handoff.CopyFrom(_encode_handoff(entry.handoff))
    for each in entry.logprobs:
        message.logprobs.add(
            logprob=each.logprob,
            top_ids=[token_id for token_id, _logprob in each.top],
            top_logprobs=[logprob for _token_id, logprob in each.top],
        )
    return message


def decode_entry(message: wire.Entry) -> TokenEntry:
    """The entry that was encoded."""
    return TokenEntry(
        request_id=message.request_id,
        attempt=message.attempt,
        choice=message.choice,
        index=message.index,
        token_ids=tuple(message.token_ids),
        finish_reason=_FINISH_FROM_WIRE.get(message.finish_reason),
        stop_token_id=message.stop_token_id if message.HasField("stop_token_id") else None,
        num_cached_tokens=message.num_cached_tokens,
        refusal=_decode_refusal(message.refusal) if message.HasField("refusal") else None,
        timeline=_decode_timeline(message.timeline) if message.HasField("timeline") else None,
        logprobs=tuple(
            TokenLogprob(each.logprob, tuple(zip(each.top_ids, each.top_logprobs, strict=True)))
            for each in message.logprobs
        ),
        handoff=_decode_handoff(message.handoff) if message.HasField("handoff") else None,
    )


def encode_expected_handoff(request: EngineRequest, handoff: HandoffIn) -> wire.ExpectHandoff:
    """What a decode replica needs to fetch a request's blocks before the request comes."""
    return wire.ExpectHandoff(
        request_id=request.request_id,
        generation=handoff.generation,
        token_ids=(*request.prompt_token_ids, *request.emitted_token_ids),
        root=request.root,
        deadline_s=handoff.deadline_s,
    )


def decode_expected_handoff(message: wire.ExpectHandoff) -> EngineRequest:
    """A request to prefetch and not to serve; ValueError for one that makes no sense."""
    return EngineRequest(
        message.request_id,
        tuple(message.token_ids),
        SamplingParams(max_tokens=1),
        message.root,
        handoff=HandoffIn(message.generation, message.deadline_s),
    )


def encode_report(report: EngineReport) -> wire.Status:
    """What a replica says of itself."""
    stats = wire.EngineStats(**{name: getattr(report.stats, name) for name in _STATS_FIELDS})
    return wire.Status(
        epoch=report.epoch,
        outstanding_tokens=report.outstanding_tokens,
        num_open_requests=report.num_open_requests,
        stats=stats,
        admissions=[
            wire.GatewayAdmission(
                gateway_id=admission.gateway_id,
                admitted_tokens_total=admission.admitted_tokens_total,
                num_promised=admission.num_promised,
                promised_blocks=admission.promised_blocks,
            )
            for admission in report.admissions
        ],
        fetch_token_s=report.fetch_token_s,
    )


def decode_report(message: wire.Status) -> EngineReport:
    """The report that was encoded."""
    return EngineReport(
        epoch=message.epoch,
        outstanding_tokens=message.outstanding_tokens,
        num_open_requests=message.num_open_requests,
        stats=EngineStats(**{name: getattr(message.stats, name) for name in _STATS_FIELDS}),
        admissions=tuple(
            GatewayAdmission(
                admission.gateway_id,
                admission.admitted_tokens_total,
                admission.num_promised,
                admission.promised_blocks,
            )
            for admission in message.admissions
        ),
        fetch_token_s=message.fetch_token_s,
    )


def encode_heartbeat(heartbeat: Heartbeat) -> wire.ReplicaMessage:
    """A whole message, ready to send."""
    return wire.ReplicaMessage(
        heartbeat=wire.Heartbeat(
            last_step_age_s=heartbeat.last_step_age_s,
            has_work=heartbeat.has_work,
            is_accepting=heartbeat.is_accepting,
            status=encode_report(heartbeat.report),
            metric_reports=heartbeat.metric_reports,
        )
    )


def decode_heartbeat(message: wire.Heartbeat) -> Heartbeat:
    """The heartbeat that was encoded."""
    return Heartbeat(
        last_step_age_s=message.last_step_age_s,
        has_work=message.has_work,
        is_accepting=message.is_accepting,
        report=decode_report(message.status),
        metric_reports=tuple(message.metric_reports),
    )


def encode_step(step: StepMessage) -> wire.ReplicaMessage:
    """A whole message, ready to send."""
    return wire.ReplicaMessage(
        step=wire.Step(
            sequence=step.sequence,
            entries=[encode_entry(entry) for entry in step.entries],
            status=encode_report(step.report),
            kv_events=[_encode_kv(batch) for batch in step.kv_events],
            view=None if step.view is None else encode_view(step.view),
            kv_snapshots=[_encode_snapshot(snapshot) for snapshot in step.kv_snapshots],
        )
    )


def decode_step(message: wire.Step) -> StepMessage:
    """The step that was encoded."""
    return StepMessage(
        sequence=message.sequence,
        entries=tuple(decode_entry(entry) for entry in message.entries),
        report=decode_report(message.status),
        kv_events=tuple(_decode_kv(batch) for batch in message.kv_events),
        view=decode_view(message.view) if message.HasField("view") else None,
        kv_snapshots=tuple(_decode_snapshot(snapshot) for snapshot in message.kv_snapshots),
    )


def _encode_kv(batch: KvEventBatch) -> wire.KvEvents:
    return wire.KvEvents(
        epoch=batch.epoch,
        first_number=batch.first_number,
        events=[
            wire.KvEvent(
                kind=event.kind,
                block_hashes=event.block_hashes,
                parent=event.parent,
                token_ids=event.token_ids,
            )
            for event in batch.events
        ],
    )


def _decode_kv(message: wire.KvEvents) -> KvEventBatch:
    return KvEventBatch(
        epoch=message.epoch,
        first_number=message.first_number,
        events=tuple(
            KvEvent(
                kind=event.kind,
                block_hashes=tuple(event.block_hashes),
                parent=event.parent if event.HasField("parent") else None,
                token_ids=tuple(event.token_ids),
            )
            for event in message.events
        ),
    )


def _encode_snapshot(snapshot: KvSnapshot) -> wire.KvSnapshot:
    return wire.KvSnapshot(
        epoch=snapshot.epoch,
        next_number=snapshot.next_number,
        block_hashes=snapshot.block_hashes,
        is_first=snapshot.is_first,
        is_last=snapshot.is_last,
    )


def _decode_snapshot(message: wire.KvSnapshot) -> KvSnapshot:
    return KvSnapshot(
        epoch=message.epoch,
        next_number=message.next_number,
        block_hashes=tuple(message.block_hashes),
        is_first=message.is_first,
        is_last=message.is_last,
    )


def _encode_handoff(news: HandoffNews) -> wire.HandoffNews:
    return wire.HandoffNews(
        generation=news.generation,
        outcome=news.outcome,
        num_tokens=news.num_tokens,
        num_bytes=news.num_bytes,
        seconds=news.seconds,
        transport=news.transport,
    )


def _decode_handoff(message: wire.HandoffNews) -> HandoffNews:
    return HandoffNews(
        generation=message.generation,
        outcome=typing.cast(HandoffOutcome, message.outcome),
        num_tokens=message.num_tokens,
        num_bytes=message.num_bytes,
        seconds=message.seconds,
        transport=message.transport,
    )


def _decode_refusal(message: wire.Refusal) -> Refusal:
    return Refusal(
        reason=RefusalReason(message.reason),
        message=message.message,
        retry_after_s=message.retry_after_s if message.HasField("retry_after_s") else None,
    )


def _decode_timeline(message: wire.Timeline) -> Timeline:
    return Timeline(
        arrived_at=message.arrived_at,
        scheduled_at=message.scheduled_at if message.HasField("scheduled_at") else None,
        first_token_at=message.first_token_at if message.HasField("first_token_at") else None,
        finished_at=message.finished_at if message.HasField("finished_at") else None,
        received_at=message.received_at if message.HasField("received_at") else None,
        num_preemptions=message.num_preemptions,
    )
