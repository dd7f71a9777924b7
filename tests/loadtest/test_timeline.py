"""A run laid out over time adds up to what happened."""

import pytest

from loadtest.timeline import build_timeline, peak_concurrency, peak_tokens_per_s
from tests.loadtest.records import record


def test_the_timeline_adds_up_to_the_totals() -> None:
    records = [record(sent_at=i * 0.1, num_tokens=11) for i in range(200)]
    timeline = build_timeline(records, 0.0)
    assert sum(timeline.output_tokens_per_s) * timeline.bucket_s == pytest.approx(2200, rel=0.01)
    assert sum(timeline.arrival_rate) * timeline.bucket_s == pytest.approx(200, rel=0.01)


def test_mean_concurrency_is_rate_times_time_in_flight() -> None:
    # Little's law: 10 requests a second of 0.2 s each are 2 in flight.
    records = [record(sent_at=i * 0.1, ttft_s=0.1, gap_s=0.01) for i in range(300)]
    timeline = build_timeline(records, 0.0)
    assert timeline.concurrency[10] == pytest.approx(2.0, abs=0.05)


def test_the_peak_does_not_count_one_that_ends_as_another_starts() -> None:
    first = record(sent_at=0.0, ttft_s=1.0, num_tokens=1)
    second = record(sent_at=1.0, ttft_s=1.0, num_tokens=1)
    third = record(sent_at=1.5, ttft_s=1.0, num_tokens=1)
    assert peak_concurrency([first, second]) == 1
    assert peak_concurrency([first, second, third]) == 2


def test_the_peak_of_tokens_is_taken_over_whole_seconds() -> None:
    records = [
        record(sent_at=s, ttft_s=0.1, gap_s=0.01, num_tokens=n) for s, n in ((0, 5), (3, 40))
    ]
    assert peak_tokens_per_s(records, 0.0) == 40


def test_ttft_is_missing_where_nothing_was_sent() -> None:
    records = [record(sent_at=0.0), record(sent_at=30.0)]
    timeline = build_timeline(records, 0.0)
    assert timeline.ttft_ms[0] == pytest.approx(100)
    assert timeline.ttft_ms[15] is None
