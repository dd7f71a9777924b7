"""The cosines and sines of every position, made once, so that a step only looks rows up."""

import math

import torch

from replicas.models.rope_config import RopeConfig
from replicas.models.supported import UnsupportedModel


class RotaryTable:
    """cos and sin [max_model_len, D] of all positions, as rotation of the two halves of a head.

    sin has its first half negated, so that rotating x is x * cos + swap_halves(x) * sin.
    (RoFormer; linear, YaRN and Llama 3.1 stretching as in Hugging Face's own config fields.)
    """

    def __init__(
        self,
        rope: RopeConfig,
        *,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
        name: str,
    ) -> None:
        if rope.kind == "dynamic" and max_model_len > rope.trained_positions:
            # Beyond it the angles would change with the longest request so far, and cached
            # keys with them.
            raise UnsupportedModel(
                f"model {name}: rope scaling dynamic is exact only up to {rope.trained_positions} "
                f"positions; lower max_model_len={max_model_len}"
            )
        frequencies, magnitude = _frequencies(rope)
        angles = torch.arange(max_model_len, dtype=torch.float32)[:, None] * frequencies
        cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
        self._cos = torch.cat((cos, cos), dim=1).to(device=device, dtype=dtype)
        self._sin = torch.cat((-sin, sin), dim=1).to(device=device, dtype=dtype)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [T, D] of positions [T] int64."""
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)


def _frequencies(rope: RopeConfig) -> tuple[torch.Tensor, float]:
    """Radians per position [D / 2], and what cosines and sines are multiplied by."""
    exponents = torch.arange(0, rope.head_dim, 2, dtype=torch.float32) / rope.head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return plain / rope.numbers["factor"], 1.0
    if rope.kind == "llama3":
        return _llama3(plain, rope), 1.0
    if rope.kind == "yarn":
        return _yarn(plain, rope), _yarn_magnitude(rope)
    return plain, 1.0


def _llama3(plain: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Long waves slowed by factor, short ones kept, a linear passage between (Llama 3.1)."""
    factor = rope.numbers["factor"]
    low, high = rope.numbers["low_freq_factor"], rope.numbers["high_freq_factor"]
    turns = rope.trained_positions * plain / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - share) * plain / factor + share * plain


def _yarn(plain: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Interpolate dimensions that turn less than beta_slow times, keep those above beta_fast."""

    def dimension_of(turns: float) -> float:
        wavelength = rope.trained_positions / (turns * 2 * math.pi)
        return rope.head_dim * math.log(wavelength) / (2 * math.log(rope.theta))

    first = dimension_of(rope.numbers.get("beta_fast") or 32.0)
    last = dimension_of(rope.numbers.get("beta_slow") or 1.0)
    if rope.numbers.get("truncate", 1.0):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.head_dim - 1)
    # The ramp must have some width, or it would divide by zero.
    width = (last - first) or 0.001
    ramp = ((torch.arange(len(plain), dtype=torch.float32) - first) / width).clamp(0.0, 1.0)
    return plain / rope.numbers["factor"] * ramp + plain * (1 - ramp)


def _yarn_magnitude(rope: RopeConfig) -> float:
    numbers = rope.numbers
    if "attention_factor" in numbers:
        return numbers["attention_factor"]

    def mscale(weight: float) -> float:
        factor = numbers["factor"]
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if numbers.get("mscale") and numbers.get("mscale_all_dim"):
        return mscale(numbers["mscale"]) / mscale(numbers["mscale_all_dim"])
    return mscale(1.0)
