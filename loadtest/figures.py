"""Computes what users felt from the records: latencies, throughput, goodput, error classes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.call_record import CallRecord

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Window:
    """The measured part of a run, from `begin` to `end` in monotonic seconds.

    `is_whole` says that nothing was cut off at either side.
    """

    begin: float
    end: float
    is_whole: bool

    @property
    def length_s(self) -> float:
        """Its length in seconds, never 0."""
        return max(self.end - self.begin, 1e-9)

    def holds(self, at: float) -> bool:
        """Whether a moment lies inside."""
        return self.begin <= at <= self.end


def measured_window(
    records: Sequence[CallRecord], start_at: float, *, warm_up_s: float, cool_down_s: float
) -> Window:
    """The window of a run that started at `start_at`.

    Without warm-up and cool-down it reaches from the start to the last end, as vLLM counts.
    With them, from `warm_up_s` after the start to `cool_down_s` before the last request was sent,
    so that neither the ramp nor the emptying server at the end is measured.
    """
    last_sent_at = max((record.sent_at for record in records), default=start_at)
    if warm_up_s == 0 and cool_down_s == 0:
        return Window(start_at, max((r.ended_at for r in records), default=start_at), True)
    begin = start_at + warm_up_s
    end = last_sent_at - cool_down_s
    if end <= begin:
        raise ValueError(
            f"warm_up_s={warm_up_s} and cool_down_s={cool_down_s} leave nothing of a run "
            f"that sent requests for {last_sent_at - start_at:.1f} s"
        )
    return Window(begin, end, False)


def latency_values(records: Sequence[CallRecord]) -> dict[str, Values]:
    """ttft, tpot, itl and e2el of finished records, in milliseconds."""
    done = [record for record in records if record.outcome == "finished"]
    tpots = [tpot for record in done if (tpot := record.tpot_s) is not None]
    gaps = [gap for record in done for gap in record.gaps_s()]
    return {
        "ttft": np.array([record.ttft_s for record in done]) * 1000.0,
        "tpot": np.array(tpots) * 1000.0,
        "itl": np.array(gaps) * 1000.0,
        "e2el": np.array([record.e2e_s for record in done]) * 1000.0,
    }


def summary_of(values: Values, name: str, percentiles: Sequence[float]) -> dict[str, float]:
    """vLLM's keys for one metric in milliseconds; 0 where there are no values, as vLLM has it."""
    known = values if len(values) else np.zeros(1)
    summary = {
        f"mean_{name}_ms": float(np.mean(known)),
        f"median_{name}_ms": float(np.median(known)),
        f"std_{name}_ms": float(np.std(known)),
    }
    for percentile in percentiles:
        word = f"{percentile:g}"
        summary[f"p{word}_{name}_ms"] = float(np.percentile(known, percentile))
    return summary


def is_good(record: CallRecord, limits_ms: Mapping[str, float]) -> bool:
    """Whether a record finished within every limit; a single token has a TPOT of 0."""
    if record.outcome != "finished":
        return False
    values_s = {"ttft": record.ttft_s, "tpot": record.tpot_s or 0.0, "e2el": record.e2e_s}
    return all(values_s[name] * 1000.0 <= limit for name, limit in limits_ms.items())


def attainment(records: Sequence[CallRecord], limits_ms: Mapping[str, float]) -> float:
    """The share of requests that were good; failures count against it, cancellations not."""
    counted = [record for record in records if record.outcome != "cancelled"]
    if not counted:
        return 0.0
    return sum(is_good(record, limits_ms) for record in counted) / len(counted)


def throughput_figures(
    records: Sequence[CallRecord], window: Window, limits_ms: Mapping[str, float]
) -> dict[str, Any]:
    """vLLM's counts and rates for the records sent within `window`.

    In a window that was cut, rates count what happened inside it: ends of requests, and tokens as
    they arrived, of requests sent before it too.
    """
    counted = [record for record in records if window.holds(record.sent_at)]
    done = [record for record in counted if record.outcome == "finished"]
    input_tokens = sum(record.prompt_tokens for record in done)
    output_tokens = sum(record.output_tokens for record in done)
    rates = _whole_rates(done, window) if window.is_whole else _cut_rates(records, window)
    good = sum(is_good(record, limits_ms) for record in counted)
    return {
        "duration": window.length_s,
        "completed": len(done),
        "failed": sum(record.outcome in ("failed", "unfinished") for record in counted),
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": rates[0],
        "request_goodput": good / window.length_s if limits_ms else None,
        "output_throughput": rates[2],
        "total_token_throughput": rates[1] + rates[2],
    }


def error_classes(records: Sequence[CallRecord]) -> dict[str, int]:
    """How many requests failed in each way; those without an end count as `unfinished`."""
    classes = Counter(
        record.error_class if record.outcome == "failed" else "unfinished"
        for record in records
        if record.outcome in ("failed", "unfinished")
    )
    return dict(classes.most_common())


def _whole_rates(done: Sequence[CallRecord], window: Window) -> tuple[float, float, float]:
    inputs = sum(record.prompt_tokens for record in done)
    outputs = sum(record.output_tokens for record in done)
    length = window.length_s
    return len(done) / length, inputs / length, outputs / length


def _cut_rates(records: Sequence[CallRecord], window: Window) -> tuple[float, float, float]:
    done = [r for r in records if r.outcome == "finished"]
    ended = [record for record in done if window.holds(record.ended_at)]
    prefilled = [record for record in done if window.holds(record.chunk_at[0])]
    outputs = 0.0
    for record in done:
        inside = sum(window.holds(at) for at in record.chunk_at)
        outputs += record.output_tokens * inside / len(record.chunk_at)
    inputs = sum(record.prompt_tokens for record in prefilled)
    length = window.length_s
    return len(ended) / length, inputs / length, outputs / length
