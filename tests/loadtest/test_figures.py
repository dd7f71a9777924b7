"""Figures are vLLM's, from the stamps: latencies, rates, goodput and error classes."""

import numpy as np
import pytest

from loadtest.figures import (
    Window,
    attainment,
    error_classes,
    is_good,
    latency_values,
    measured_window,
    summary_of,
    throughput_figures,
)
from tests.loadtest.records import record

WHOLE = Window(0.0, 10.0, is_whole=True)


def test_latencies_follow_their_definitions() -> None:
    values = latency_values([record(ttft_s=0.2, gap_s=0.05, num_tokens=5)])
    assert values["ttft"] == pytest.approx([200])
    assert values["tpot"] == pytest.approx([50])
    assert values["itl"] == pytest.approx([50] * 4)
    assert values["e2el"] == pytest.approx([400])


def test_a_single_token_has_no_tpot_and_failures_have_no_latency() -> None:
    values = latency_values([record(num_tokens=1), record(outcome="failed")])
    assert (len(values["ttft"]), len(values["tpot"]), len(values["itl"])) == (1, 0, 0)


def test_percentiles_are_interpolated_as_numpy_does() -> None:
    summary = summary_of(np.arange(1.0, 101.0), "ttft", (50.0, 99.0, 99.9))
    assert summary["mean_ttft_ms"] == pytest.approx(50.5)
    assert summary["p99_ttft_ms"] == pytest.approx(99.01)
    assert summary["std_ttft_ms"] == pytest.approx(28.866, abs=1e-3)
    assert "p99.9_ttft_ms" in summary


def test_goodput_wants_every_limit_met() -> None:
    fast, slow = record(ttft_s=0.1, gap_s=0.01), record(ttft_s=0.3, gap_s=0.01)
    assert is_good(fast, {"ttft": 100.0001, "tpot": 10.0001})
    assert not is_good(fast, {"ttft": 200, "tpot": 9})
    assert not is_good(slow, {"ttft": 200, "tpot": 20})
    assert not is_good(record(ttft_s=0.1, gap_s=0.1), {"ttft": 200, "e2el": 1000})


def test_a_failure_is_never_good_and_counts_against_the_share() -> None:
    records = [record(), record(), record(outcome="failed"), record(outcome="cancelled")]
    assert attainment(records, {"ttft": 1000}) == pytest.approx(2 / 3)
    figures = throughput_figures(records, WHOLE, {"ttft": 1000})
    assert figures["request_goodput"] == pytest.approx(0.2)


def test_a_single_token_is_good_for_any_tpot() -> None:
    assert is_good(record(num_tokens=1), {"tpot": 0.0})


def test_without_limits_there_is_no_goodput() -> None:
    assert throughput_figures([record()], WHOLE, {})["request_goodput"] is None


def test_rates_of_a_whole_run_are_totals_over_its_time() -> None:
    records = [record(sent_at=float(i), num_tokens=11) for i in range(5)]
    figures = throughput_figures(records, WHOLE, {})
    assert (figures["completed"], figures["failed"]) == (5, 0)
    assert figures["request_throughput"] == pytest.approx(0.5)
    assert figures["output_throughput"] == pytest.approx(5.5)
    assert figures["total_token_throughput"] == pytest.approx(55.5)


def test_the_window_leaves_out_warm_up_and_cool_down() -> None:
    records = [record(sent_at=100.0 + i) for i in range(11)]
    window = measured_window(records, 100.0, warm_up_s=2.0, cool_down_s=3.0)
    assert (window.begin, window.end, window.is_whole) == (102.0, 107.0, False)
    assert throughput_figures(records, window, {})["completed"] == 6


def test_a_cut_window_counts_the_tokens_that_arrived_in_it() -> None:
    # One request that streams 101 tokens from 0.5 s to 10.5 s: 4 of its 10 seconds are inside.
    long = record(sent_at=0.0, ttft_s=0.5, gap_s=0.1, num_tokens=101)
    figures = throughput_figures([long], Window(2.0, 6.0, is_whole=False), {})
    assert figures["output_throughput"] == pytest.approx(10.0, abs=0.3)
    assert figures["completed"] == 0


def test_a_window_with_nothing_in_it_is_refused() -> None:
    with pytest.raises(ValueError, match="warm_up_s=5"):
        measured_window([record(sent_at=1.0)], 0.0, warm_up_s=5.0, cool_down_s=0.0)


def test_errors_are_counted_by_class() -> None:
    records = [
        record(outcome="failed", error_class="http_503"),
        record(outcome="failed", error_class="http_503"),
        record(outcome="failed", error_class="timeout"),
        record(outcome="unfinished"),
        record(),
    ]
    assert error_classes(records) == {"http_503": 2, "timeout": 1, "unfinished": 1}
