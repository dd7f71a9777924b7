"""Tells whether a run asked for more than the server could give, or the driver could send."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadtest.call_record import CallRecord

Kind = Literal["none", "growing_backlog", "refusals"]

MIN_REQUESTS = 20
MAX_REFUSED_SHARE = 0.01
MAX_LAG_P99_S = 0.010
MAX_DRIVER_CPU = 0.9
# A backlog is called growing when the last third of the run has this much more in flight and a
# TTFT this much longer than the first, and both rise steadily (rank correlation with time).
GROWTH = 1.5
MIN_TREND = 0.5
NUM_SLICES = 24


@dataclass(frozen=True, slots=True)
class Saturation:
    """What of the server ran full, if anything, and the numbers that say so."""

    kind: Kind
    detail: str


@dataclass(frozen=True, slots=True)
class DriverVerdict:
    """Whether the driver sent on time; if not, its figures are doubtful and `detail` says why."""

    kept_up: bool
    detail: str


def judge_driver(records: Sequence[CallRecord], *, cpu_ratio: float) -> DriverVerdict:
    """Judge by how late requests were sent and how near the busiest process is to a whole core."""
    lag_s = float(np.percentile([record.lag_s for record in records] or [0.0], 99))
    if lag_s <= MAX_LAG_P99_S and cpu_ratio <= MAX_DRIVER_CPU:
        return DriverVerdict(True, "requests were sent on time")
    cause = "more --processes" if cpu_ratio > MAX_DRIVER_CPU / 2 else "a quieter machine"
    return DriverVerdict(
        False,
        f"the driver cannot keep up: p99 of its send lag is {lag_s * 1000:.1f} ms and it uses "
        f"{cpu_ratio:.0%} of a core; it wants {cause}",
    )


def find_saturation(records: Sequence[CallRecord], *, is_open_loop: bool) -> Saturation:
    """Judge the server by a run's records.

    In a closed loop the number in flight is bounded by its users, so no backlog can grow.
    """
    sent = sorted(records, key=lambda record: record.sent_at)
    if len(sent) < MIN_REQUESTS:
        return Saturation("none", f"too few requests to judge ({len(sent)})")
    if (refusing := _refusals(sent)) is not None:
        return refusing
    if is_open_loop and (growing := _growing_backlog(sent)) is not None:
        return growing
    return Saturation("none", "requests in flight and TTFT are steady")


def _refusals(sent: Sequence[CallRecord]) -> Saturation | None:
    refused = sum(record.error_class in ("http_429", "http_503", "http_529") for record in sent)
    if refused <= MAX_REFUSED_SHARE * len(sent):
        return None
    share = refused / len(sent)
    return Saturation("refusals", f"the server refused {refused} requests ({share:.1%})")


def _growing_backlog(sent: Sequence[CallRecord]) -> Saturation | None:
    moments = np.linspace(sent[0].sent_at, sent[-1].sent_at, NUM_SLICES + 1)[1:]
    begins = np.array([record.sent_at for record in sent])
    ends = np.array([record.ended_at for record in sent])
    in_flight = np.array([((begins <= at) & (ends > at)).sum() for at in moments], dtype=float)
    # A request that had no first token yet waited at least until its end.
    ttfts = np.array([_waited_s(record) for record in sent])
    growth_flight, growth_ttft = _growth(in_flight), _growth(ttfts)
    trends = min(_trend(in_flight), _trend(ttfts))
    if min(growth_flight, growth_ttft) < GROWTH or trends < MIN_TREND:
        return None
    return Saturation(
        "growing_backlog",
        f"from the first third of the run to the last, requests in flight grew "
        f"{growth_flight:.1f} times and TTFT {growth_ttft:.1f} times",
    )


def _waited_s(record: CallRecord) -> float:
    until = record.chunk_at[0] if record.chunk_at else record.ended_at
    return max(until - record.sent_at, 0.0)


def _growth(values: np.ndarray) -> float:
    third = max(1, len(values) // 3)
    first, last = float(np.mean(values[:third])), float(np.mean(values[-third:]))
    return last / max(first, 1e-9)


def _trend(values: np.ndarray) -> float:
    """Spearman's rank correlation with the order of the values."""
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    if len(values) < 3:
        return 0.0
    return float(np.corrcoef(ranks, np.arange(len(values)))[0, 1])
