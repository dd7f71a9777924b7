"""A step's fixed part and its part per operation, told apart as soon as steps differ."""

import pytest

from replicas.memory.step_times import StepTimes
from tests.replicas.engine_harness import ManualClock


def test_steps_of_one_size_give_a_rate_alone():
    times = StepTimes(clock=ManualClock())
    for _ in range(5):
        times.record(100.0, seconds=2.0)
    assert times.fixed_s() == 0.0
    assert times.rate() == pytest.approx(50.0)


def test_steps_of_two_sizes_tell_both_parts():
    times = StepTimes(clock=ManualClock())
    times.record(100.0, seconds=3.0)
    times.record(300.0, seconds=5.0)
    assert times.fixed_s() == pytest.approx(2.0)
    assert times.rate() == pytest.approx(100.0)


def test_newer_steps_count_more():
    clock = ManualClock()
    times = StepTimes(clock=clock)
    times.record(100.0, seconds=10.0)
    clock.advance(300.0)
    times.record(100.0, seconds=1.0)
    assert times.rate() == pytest.approx(100.0, rel=0.02)


def test_times_that_make_no_sense_together_give_a_rate_alone():
    times = StepTimes(clock=ManualClock())
    times.record(100.0, seconds=5.0)
    times.record(300.0, seconds=1.0)
    assert times.fixed_s() == 0.0
    assert times.rate() == pytest.approx(400.0 / 6.0)


def test_a_step_without_time_or_operations_says_nothing():
    times = StepTimes(clock=ManualClock())
    times.record(0.0, seconds=1.0)
    times.record(1.0, seconds=0.0)
    assert not times.is_known
