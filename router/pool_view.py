"""Sums replicas' statuses up to what decisions about a whole pool need, in one place.

Autoscaling, decode credits and changes of role speak of pools; statuses speak of replicas.
"""

from collections.abc import Iterable, Mapping

from router.autoscaling import PoolLoad
from router.decode_credits import DecodeRoom
from router.pace import Pace
from router.replica_status import ReplicaRole, ReplicaState, ReplicaStatus

_UNKNOWN_BLOCKS = 1 << 30
_IN_USE = (ReplicaState.ACTIVE, ReplicaState.SUSPECT)


def decode_rooms(
    statuses: Iterable[ReplicaStatus], *, watermark: float, gateway_id: str = ""
) -> list[DecodeRoom]:
    """What the replicas that decode can still take, above the share of blocks to be left free.

    gateway_id: who asks; what other gateways have promised is taken off, its own promises it knows.
    """
    return [
        _decode_room(status, watermark, gateway_id)
        for status in statuses
        if status.state is ReplicaState.ACTIVE and status.role != "prefill"
    ]


def _decode_room(status: ReplicaStatus, watermark: float, gateway_id: str) -> DecodeRoom:
    if not status.max_num_seqs:
        # It has not made a step yet, so all of it is free; one request will tell how much that is.
        return DecodeRoom(status.replica_id, num_free_blocks=_UNKNOWN_BLOCKS, num_free_places=1)
    others = [each for each in status.admissions if each.gateway_id != gateway_id]
    kept_blocks = round(watermark * status.num_blocks) + sum(o.promised_blocks for o in others)
    num_taken = status.num_running + status.num_waiting + sum(o.num_promised for o in others)
    return DecodeRoom(
        status.replica_id,
        num_free_blocks=max(0, status.num_free_blocks - kept_blocks),
        num_free_places=max(0, status.max_num_seqs - num_taken),
    )


def pool_load(
    statuses: Iterable[ReplicaStatus],
    paces: Mapping[str, Pace],
    *,
    role: ReplicaRole,
    attainment: float | None = None,
    num_held: int = 0,
) -> PoolLoad:
    """A pool as autoscaling looks at it. A replica that drains is no longer a part of it.

    paces: as measured, by replica id. attainment, num_held: as in PoolLoad.
    """
    members = [status for status in statuses if status.role == role]
    ready = [status for status in members if status.state in _IN_USE]
    num_blocks = sum(status.num_blocks for status in ready)
    num_held_blocks = num_blocks - sum(status.num_free_blocks for status in ready)
    rates = [busy_tokens_per_s(status, paces.get(status.replica_id, Pace())) for status in ready]
    known = [rate for rate in rates if rate > 0.0]
    return PoolLoad(
        num_ready=len(ready),
        num_starting=sum(status.state is ReplicaState.STARTING for status in members),
        backlog_tokens=sum(status.outstanding_tokens for status in ready),
        tokens_per_s=sum(known) / len(known) if known else 0.0,
        kv_ratio=num_held_blocks / num_blocks if num_blocks else 0.0,
        attainment=attainment,
        num_held=num_held,
    )


def busy_tokens_per_s(status: ReplicaStatus, pace: Pace) -> float:
    """Tokens that this replica computes in a second of its present mix; 0.0 while not measured.

    Of its work, prompts are computed at the pace of prefills, all the rest at that of
    a full batch of decodes.
    """
    prompt_tokens = min(status.queued_prompt_tokens, status.outstanding_tokens)
    output_tokens = status.outstanding_tokens - prompt_tokens
    if not status.outstanding_tokens:
        # An idle pool is judged by what it will do most of.
        prompt_tokens, output_tokens = (1, 0) if status.role == "prefill" else (0, 1)
    num_rows = max(1, status.max_num_seqs)
    row_s = pace.decode_step_s(num_rows) / num_rows
    if (prompt_tokens and not pace.prefill_token_s) or (output_tokens and not row_s):
        return 0.0
    busy_s = prompt_tokens * pace.prefill_token_s + output_tokens * row_s
    return (prompt_tokens + output_tokens) / busy_s
