"""Reads how a model turns positions into angles, in both spellings that config.json has had."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from replicas.models.supported import UnsupportedModel

KINDS = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary positions (RoFormer) and how they are stretched beyond the trained context.

    kind: one of KINDS. theta: base of the wavelengths. trained_positions: context in tokens that
    the unstretched angles were trained for. numbers: whatever else the kind needs, by its
    Hugging Face name.
    """

    kind: str
    theta: float
    head_dim: int
    trained_positions: int
    numbers: Mapping[str, float]

    @classmethod
    def from_values(cls, values: Mapping[str, Any], *, head_dim: int, name: str) -> "RopeConfig":
        """From a parsed config.json; UnsupportedModel names a scaling that cannot be run."""
        given = values.get("rope_parameters") or values.get("rope_scaling") or {}
        if any(isinstance(value, Mapping) for value in given.values()):
            raise UnsupportedModel(f"model {name}: rope parameters per layer type: not supported")
        kind = given.get("rope_type") or given.get("type") or "default"
        if kind not in KINDS:
            raise UnsupportedModel(
                f"model {name}: rope scaling {kind}: not supported; expected {', '.join(KINDS)}"
            )
        partial = given.get("partial_rotary_factor", values.get("partial_rotary_factor", 1.0))
        if float(partial or 1.0) != 1.0:
            raise UnsupportedModel(
                f"model {name}: partial_rotary_factor={partial}: not supported; expected 1"
            )
        if given.get("mrope_section"):
            raise UnsupportedModel(f"model {name}: multimodal rotary positions: not supported")
        trained = values["max_position_embeddings"]
        if kind in ("llama3", "yarn"):
            trained = (
                values.get("original_max_position_embeddings")
                or given.get("original_max_position_embeddings")
                or trained
            )
        numbers = {
            key: float(value)
            for key, value in given.items()
            if isinstance(value, bool | int | float) and key != "rope_theta"
        }
        _require(kind, numbers, name=name)
        return cls(
            kind=kind,
            theta=float(given.get("rope_theta") or values.get("rope_theta") or 10_000.0),
            head_dim=head_dim,
            trained_positions=int(trained),
            numbers=numbers,
        )


def _require(kind: str, numbers: Mapping[str, float], *, name: str) -> None:
    needed = {
        "linear": ("factor",),
        "yarn": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    }
    for key in needed.get(kind, ()):
        if key not in numbers:
            raise UnsupportedModel(f"model {name}: rope scaling {kind} without {key}")
