"""What ran full is named: the server's line, its refusals, or the driver itself."""

import random

from loadtest.call_record import CallRecord
from loadtest.saturation import Saturation, find_saturation, judge_driver
from tests.loadtest.records import record


def judge(records: list[CallRecord], *, is_open: bool = True) -> Saturation:
    return find_saturation(records, is_open_loop=is_open)


def steady(count: int = 400) -> list[CallRecord]:
    rng = random.Random(1)
    return [record(sent_at=i * 0.1, ttft_s=rng.uniform(0.05, 0.3)) for i in range(count)]


def overloaded() -> list[CallRecord]:
    # Ten arrive a second and eight are served: each waits longer than the one before.
    return [record(sent_at=i * 0.1, ttft_s=0.1 + i * 0.025, num_tokens=5) for i in range(400)]


def test_a_steady_run_is_not_saturated() -> None:
    assert judge(steady()).kind == "none"


def test_a_backlog_that_grows_is_found() -> None:
    found = judge(overloaded())
    assert found.kind == "growing_backlog"
    assert "times" in found.detail


def test_a_closed_loop_has_no_backlog_to_grow() -> None:
    assert judge(overloaded(), is_open=False).kind == "none"


def test_ttft_that_wanders_without_a_trend_is_not_a_backlog() -> None:
    rng = random.Random(2)
    records = [record(sent_at=i * 0.1, ttft_s=rng.expovariate(2.0)) for i in range(400)]
    assert judge(records).kind == "none"


def test_refusals_are_named_before_a_backlog() -> None:
    records = steady() + [
        record(sent_at=i * 1.0, outcome="failed", error_class="http_503") for i in range(20)
    ]
    assert judge(records).kind == "refusals"


def test_a_driver_that_sends_late_or_has_no_core_left_says_so() -> None:
    late = [record(sent_at=i * 0.1, lag_s=0.05) for i in range(400)]
    assert "50.0 ms" in judge_driver(late, cpu_ratio=0.2).detail
    assert not judge_driver(late, cpu_ratio=0.2).kept_up
    assert not judge_driver(steady(), cpu_ratio=0.97).kept_up
    assert judge_driver(steady(), cpu_ratio=0.2).kept_up


def test_a_driver_bound_by_its_core_wants_processes_and_a_starved_one_a_quieter_machine() -> None:
    late = [record(sent_at=i * 0.1, lag_s=0.05) for i in range(400)]
    assert "--processes" in judge_driver(late, cpu_ratio=0.95).detail
    assert "quieter" in judge_driver(late, cpu_ratio=0.1).detail


def test_a_handful_of_requests_is_not_judged() -> None:
    assert "too few" in judge(steady(5)).detail
