"""Reads from a result what the report shows, whether we or vLLM's benchmark wrote it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

METRICS = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True, slots=True)
class RunView:
    """One run as the report needs it.

    `quantiles_ms` holds 101 percentiles by metric where they are known; `scatter` pairs prompt
    tokens with TTFT in milliseconds; `timeline` is None for a result without one.
    """

    name: str
    figures: Mapping[str, Any]
    quantiles_ms: Mapping[str, Sequence[float]]
    scatter: Sequence[tuple[float, float]]
    timeline: Mapping[str, Any] | None
    capacity: Mapping[str, Any] | None

    def number(self, key: str) -> float | None:
        """A figure, or None where the result has none (vLLM writes fewer)."""
        value = self.figures.get(key)
        return float(value) if isinstance(value, int | float) else None


def run_views(results: Sequence[Mapping[str, Any]]) -> list[RunView]:
    """A view for each result, with names that differ. Raises ValueError for no result."""
    if not results:
        raise ValueError("a report needs at least one result")
    names = _distinct_names(results)
    return [_run_view(result, name) for result, name in zip(results, names, strict=True)]


def _run_view(result: Mapping[str, Any], name: str) -> RunView:
    return RunView(
        name,
        result,
        result.get("distributions_ms") or _quantiles_of_lists(result),
        result.get("ttft_ms_by_prompt_tokens") or _scatter_of_lists(result),
        result.get("timeline"),
        result.get("capacity"),
    )


def _distinct_names(results: Sequence[Mapping[str, Any]]) -> list[str]:
    labels = [str(result.get("label") or result["backend"]) for result in results]
    rates = [f"{label} @ {_rate(r)}" for label, r in zip(labels, results, strict=True)]
    names = labels if len(set(labels)) == len(labels) else rates
    counts = Counter(names)
    seen: Counter[str] = Counter()
    distinct = []
    for name in names:
        seen[name] += 1
        distinct.append(name if counts[name] == 1 else f"{name} #{seen[name]}")
    return distinct


def _rate(result: Mapping[str, Any]) -> str:
    if result.get("arrivals") == "users":
        return "closed loop"
    if result.get("arrivals") == "trace":
        return "trace"
    rate = result.get("request_rate", "inf")
    return f"{rate:g}/s" if isinstance(rate, int | float) else f"{rate}/s"


def _quantiles_of_lists(result: Mapping[str, Any]) -> dict[str, list[float]]:
    """Percentiles from vLLM's detailed lists (seconds; 0 marks a request that failed)."""
    values = {
        "ttft": [value for value in result.get("ttfts") or [] if value > 0],
        "itl": [gap for gaps in result.get("itls") or [] for gap in gaps],
        "e2el": [value for value in result.get("latencies") or [] if value > 0],
    }
    return {
        name: [float(x) * 1000.0 for x in np.percentile(known, range(101))]
        for name, known in values.items()
        if known
    }


def _scatter_of_lists(result: Mapping[str, Any]) -> list[tuple[float, float]]:
    pairs = zip(result.get("input_lens") or [], result.get("ttfts") or [], strict=False)
    return [(tokens, ttft * 1000.0) for tokens, ttft in pairs if ttft > 0]
