"""Decides for each request whether handing it from prefill to decode pool is worth the trouble.

Disaggregation that always happens is slower than none for short or mostly cached prompts (survey,
complaint 10). Both ways are predicted: local costs the decode replica's own queue, the prefill
there, and what its running requests lose meanwhile; remote costs the prefill replica's queue, the
prefill there with what it holds, and the part of the transfer that the last chunk exposes.
"""

from dataclasses import dataclass, replace
from typing import Literal

from router.pace import Pace

Mode = Literal["auto", "always", "never"]
Reason = Literal[
    "forced",
    "no_prefill_replica",
    "no_decode_replica",
    "several_choices",
    "one_token",
    "unmeetable",
    "short_prompt",
    "mostly_cached",
    "unmeasured",
    "local_cheaper",
    "remote_cheaper",
]


@dataclass(frozen=True, slots=True)
class DisaggregationLimits:
    """mode: auto predicts; always and never are forced.

    min_missing_tokens: prompts that leave the decode side less to compute stay there unpredicted.
    interference_weight: what a second that a running request loses counts against a second of
    this one's first token.
    """

    mode: Mode = "auto"
    min_missing_tokens: int = 64
    interference_weight: float = 0.2

    def __post_init__(self) -> None:
        if self.mode not in ("auto", "always", "never"):
            raise ValueError(f"mode={self.mode!r}: expected auto or always or never")
        for name in ("min_missing_tokens", "interference_weight"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 or more")


@dataclass(frozen=True, slots=True)
class Side:
    """The replica that would prefill on one side.

    hit_tokens: of the prompt, those that it holds. queued_prefill_tokens: prompts before this one.
    num_decoding: running requests that a prefill there would slow down.
    """

    pace: Pace
    hit_tokens: int = 0
    queued_prefill_tokens: int = 0
    num_decoding: int = 0


@dataclass(frozen=True, slots=True)
class Transfer:
    """What moving the KV costs: seconds per token, of which the last chunk's are not hidden.

    fixed_s: what a hand-off takes however small it is: reserving, the table, adopting.
    """

    token_s: float
    chunk_tokens: int
    fixed_s: float


@dataclass(frozen=True, slots=True)
class Decision:
    """Where the prompt is computed, and why; predictions in seconds, None where none was needed."""

    is_remote: bool
    reason: Reason
    local_s: float | None = None
    remote_s: float | None = None


def decide(
    prompt_tokens: int,
    *,
    decode: Side | None,
    prefill: Side | None,
    transfer: Transfer,
    limits: DisaggregationLimits,
    trust: float = 1.0,
) -> Decision:
    """Compare both ways; None for a side means that no replica of it can be used.

    trust: how much the measured pace of the prefill side is still believed, from 0 to 1; for the
    rest it is taken to be as fast as the decode side, since a pool that was slow once and gets no
    prompts any more would never be seen to be quick again.
    """
    if prefill is None:
        return Decision(is_remote=False, reason="no_prefill_replica")
    if decode is None:
        return Decision(is_remote=True, reason="no_decode_replica")
    if (early := decide_early(prompt_tokens, decode=decode, limits=limits)) is not None:
        return early
    missing = max(1, prompt_tokens - decode.hit_tokens)
    if not prefill.pace.prefill_token_s > 0.0:
        # Each way measures the pace of its side; a long prompt disturbs more where it decodes.
        return Decision(is_remote=True, reason="unmeasured")
    if not decode.pace.prefill_token_s > 0.0:
        # A replica that was always spared prompts is taken to be as fast as the other.
        pace = replace(decode.pace, prefill_token_s=prefill.pace.prefill_token_s)
        decode = replace(decode, pace=pace)
    token_s = prefill.pace.prefill_token_s
    token_s = trust * token_s + (1.0 - trust) * decode.pace.prefill_token_s
    prefill = replace(prefill, pace=replace(prefill.pace, prefill_token_s=token_s))
    local_s = _local_s(missing, decode, limits.interference_weight)
    remote_s = _remote_s(prompt_tokens, missing, prefill, transfer)
    is_remote = remote_s < local_s
    reason: Reason = "remote_cheaper" if is_remote else "local_cheaper"
    return Decision(is_remote, reason, local_s, remote_s)


def decide_early(
    prompt_tokens: int, *, decode: Side, limits: DisaggregationLimits
) -> Decision | None:
    """What can be decided without a look at the prefill side; None if that takes one."""
    if limits.mode != "auto":
        return Decision(is_remote=limits.mode == "always", reason="forced")
    if max(1, prompt_tokens - decode.hit_tokens) < limits.min_missing_tokens:
        is_cached = prompt_tokens >= limits.min_missing_tokens
        return Decision(is_remote=False, reason="mostly_cached" if is_cached else "short_prompt")
    return None


def _local_s(missing: int, decode: Side, interference_weight: float) -> float:
    own_s = missing * decode.pace.prefill_token_s
    queue_s = decode.queued_prefill_tokens * decode.pace.prefill_token_s
    return queue_s + own_s + interference_weight * own_s * decode.num_decoding


def _remote_s(prompt_tokens: int, missing: int, prefill: Side, transfer: Transfer) -> float:
    compute_tokens = max(1, prompt_tokens - prefill.hit_tokens)
    compute_s = (prefill.queued_prefill_tokens + compute_tokens) * prefill.pace.prefill_token_s
    # What both sides hold is not moved. Earlier chunks move while later ones compute, as far as
    # the link keeps up with the prefill.
    moved_s = missing * transfer.token_s
    last_s = min(missing, transfer.chunk_tokens) * transfer.token_s
    own_compute_s = compute_tokens * prefill.pace.prefill_token_s
    exposed_s = max(last_s, moved_s - own_compute_s)
    return compute_s + exposed_s + transfer.fixed_s
