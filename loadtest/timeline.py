"""Lays a run out over time: arrivals, ends, tokens, concurrency and TTFT per interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.call_record import CallRecord

MAX_BUCKETS = 300


@dataclass(frozen=True, slots=True)
class Timeline:
    """Equal intervals of `bucket_s` seconds; rates are per second.

    `concurrency` is the mean number of requests in flight in each interval; `ttft_ms` the median
    of the requests sent in it (None where none was).
    """

    bucket_s: float
    arrival_rate: list[float]
    finish_rate: list[float]
    failure_rate: list[float]
    output_tokens_per_s: list[float]
    concurrency: list[float]
    ttft_ms: list[float | None]


def build_timeline(records: Sequence[CallRecord], start_at: float) -> Timeline:
    """The timeline of everything that was sent, warm-up and cool-down too."""
    end = max((record.ended_at for record in records), default=start_at + 1.0)
    length_s = max(end - start_at, 1e-3)
    bucket_s = max(1.0, math.ceil(length_s / MAX_BUCKETS)) if length_s >= 10 else length_s / 20
    count = max(1, math.ceil(length_s / bucket_s))
    edges = start_at + bucket_s * np.arange(count + 1)
    done = [record for record in records if record.outcome == "finished"]
    failed = [record for record in records if record.outcome == "failed"]
    times, weights = _token_times(records)
    return Timeline(
        bucket_s,
        _rate([record.sent_at for record in records], edges),
        _rate([record.ended_at for record in done], edges),
        _rate([record.ended_at for record in failed], edges),
        _rate(times, edges, weights),
        _mean_concurrency(records, edges),
        _median_ttft(records, edges),
    )


def peak_concurrency(records: Sequence[CallRecord]) -> int:
    """The most requests in flight at once; one that ends as another starts is not counted."""
    steps = sorted(
        step for record in records for step in ((record.sent_at, 1), (record.ended_at, -1))
    )
    running = peak = 0
    for _, change in steps:
        running += change
        peak = max(peak, running)
    return peak


def peak_tokens_per_s(records: Sequence[CallRecord], start_at: float) -> float:
    """The most output tokens within one whole second from the start on."""
    times, weights = _token_times(records)
    if not len(times):
        return 0.0
    seconds = np.maximum(np.asarray(times) - start_at, 0.0).astype(int)
    return float(np.bincount(seconds, weights=weights).max())


def _token_times(records: Sequence[CallRecord]) -> tuple[list[float], list[float]]:
    times: list[float] = []
    weights: list[float] = []
    for record in records:
        if record.chunk_at:
            times.extend(record.chunk_at)
            # A chunk may carry several tokens; the count of the whole is spread over its chunks.
            weights.extend([record.output_tokens / len(record.chunk_at)] * len(record.chunk_at))
    return times, weights


def _rate(
    times: Sequence[float], edges: np.ndarray, weights: Sequence[float] | None = None
) -> list[float]:
    counts, _ = np.histogram(np.asarray(times, dtype=float), bins=edges, weights=weights)
    return [round(float(value), 4) for value in counts / (edges[1] - edges[0])]


def _mean_concurrency(records: Sequence[CallRecord], edges: np.ndarray) -> list[float]:
    """Each request adds the part of every interval during which it was in flight."""
    begins = np.array([record.sent_at for record in records])
    ends = np.array([record.ended_at for record in records])
    # The time in flight up to a moment t, over all requests, is piecewise linear in t.
    flown = np.array([np.clip(np.minimum(ends, edge) - begins, 0.0, None).sum() for edge in edges])
    return [round(float(value), 3) for value in np.diff(flown) / (edges[1] - edges[0])]


def _median_ttft(records: Sequence[CallRecord], edges: np.ndarray) -> list[float | None]:
    first = [record for record in records if record.chunk_at]
    places = np.searchsorted(edges, [record.sent_at for record in first], side="right") - 1
    groups: dict[int, list[float]] = {}
    for place, record in zip(places, first, strict=True):
        groups.setdefault(int(place), []).append(record.ttft_s * 1000.0)
    return [
        round(float(np.median(groups[i])), 3) if i in groups else None
        for i in range(len(edges) - 1)
    ]
