"""Decides between moving KV and computing it again, from measured speeds (lecture 10, exercise 4).

Swap = alpha + 2 * KV bytes / bandwidth; recompute = (2 N S + 4 L H D S^2) / F. The bytes grow with
S and the attention with S squared, so for one model and one link there is a length from which
moving wins. Pure arithmetic: the speeds come from BandwidthMeter and from the engine's own steps.
"""

import math
from dataclasses import dataclass
from typing import Literal

Choice = Literal["move", "recompute"]


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Floating point operations of a prefill of S tokens: linear_flops * S + attention_flops * S^2.

    linear_flops: two for each parameter. attention_flops: 4 * layers * heads * head_dim; the
    lecture does not halve it for the causal mask, and a measured rate makes up for that.
    """

    linear_flops: float
    attention_flops: float

    @classmethod
    def of_model(
        cls, *, num_parameters: int, num_layers: int, num_heads: int, head_dim: int
    ) -> "PrefillCost":
        """From the sizes of a decoder; heads are query heads."""
        return cls(2.0 * num_parameters, 4.0 * num_layers * num_heads * head_dim)

    def flops(self, num_tokens: int, *, num_cached_tokens: int = 0) -> float:
        """Operations for tokens num_cached_tokens to num_tokens, whose prefix is there already."""
        attention = float(num_tokens) ** 2 - float(num_cached_tokens) ** 2
        return self.linear_flops * (num_tokens - num_cached_tokens) + (
            self.attention_flops * attention
        )


@dataclass(frozen=True, slots=True)
class MeasuredSpeeds:
    """What the running system achieves now.

    prefill_flops_per_s: of PrefillCost's operations. out_bytes_per_s, back_bytes_per_s: to the
    store and from it. round_trip_s: of a transfer without bytes, alpha in the formula.
    """

    prefill_flops_per_s: float
    out_bytes_per_s: float
    back_bytes_per_s: float
    round_trip_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """Both sides of one decision in seconds, so that each can be compared with what it took."""

    move_s: float
    recompute_s: float

    @property
    def choice(self) -> Choice:
        """The cheaper side; at a draw recompute, which needs nobody else."""
        return "move" if self.move_s < self.recompute_s else "recompute"


def swap_or_recompute(
    num_tokens: int,
    *,
    kv_bytes_per_token: int,
    cost: PrefillCost,
    speeds: MeasuredSpeeds,
    num_kept_tokens: int = 0,
) -> Estimate:
    """For a preempted request: out and back again, against a second prefill.

    num_tokens: computed so far. num_kept_tokens: the first of them, in blocks that others hold.
    """
    num_bytes = (num_tokens - num_kept_tokens) * kv_bytes_per_token
    out_s = num_bytes / speeds.out_bytes_per_s
    back_s = num_bytes / speeds.back_bytes_per_s
    return Estimate(
        move_s=speeds.round_trip_s + out_s + back_s,
        recompute_s=cost.flops(num_tokens, num_cached_tokens=num_kept_tokens)
        / speeds.prefill_flops_per_s,
    )


def fetch_or_recompute(
    num_tokens: int,
    *,
    num_cached_tokens: int,
    kv_bytes_per_token: int,
    cost: PrefillCost,
    speeds: MeasuredSpeeds,
) -> Estimate:
    """For a prefix found in the store: one way, beyond what the engine holds, against its prefill.

    num_tokens: length of the found prefix. num_cached_tokens: of it, those here already.
    """
    num_bytes = (num_tokens - num_cached_tokens) * kv_bytes_per_token
    flops = cost.flops(num_tokens, num_cached_tokens=num_cached_tokens)
    return Estimate(
        move_s=speeds.round_trip_s + num_bytes / speeds.back_bytes_per_s,
        recompute_s=flops / speeds.prefill_flops_per_s,
    )


def break_even_bytes_per_s(
    num_tokens: int, *, kv_bytes_per_token: int, cost: PrefillCost, prefill_flops_per_s: float
) -> float:
    """W*: the speed of a link, both ways alike, at which swapping S tokens costs a recompute."""
    num_bytes = 2.0 * num_tokens * kv_bytes_per_token
    return num_bytes * prefill_flops_per_s / cost.flops(num_tokens)


def crossover_tokens(
    *, kv_bytes_per_token: int, cost: PrefillCost, speeds: MeasuredSpeeds
) -> float | None:
    """Length from which on swapping wins; 0 if it always does, None if it never does.

    The formula is a quadratic in S; with a round trip it may hold below some length too, where
    neither side costs anything worth deciding.
    """
    per_byte_s = 1.0 / speeds.out_bytes_per_s + 1.0 / speeds.back_bytes_per_s
    square = cost.attention_flops / speeds.prefill_flops_per_s
    linear = cost.linear_flops / speeds.prefill_flops_per_s - kv_bytes_per_token * per_byte_s
    if square == 0.0:
        return speeds.round_trip_s / linear if linear > 0.0 else None
    discriminant = linear * linear + 4.0 * square * speeds.round_trip_s
    return max(0.0, (-linear + math.sqrt(discriminant)) / (2.0 * square))
