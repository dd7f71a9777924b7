"""What a step takes, learnt from steps."""

import random

import pytest

from replicas.speculation.step_table import StepTable


def table_of(*, num_steps=400, **seconds):
    """seconds by "t" + tokens, each seen often."""
    table = StepTable()
    for _ in range(num_steps):
        for name, each in seconds.items():
            table.record(int(name[1:]), seconds=each)
    return table


def test_nothing_is_known_before_the_first_step():
    assert not StepTable().is_known


def test_a_known_number_takes_what_it_took():
    assert table_of(t1=0.010, t8=0.012, t32=0.04).seconds(8) == pytest.approx(0.012, rel=0.01)


def test_between_two_known_numbers_it_is_interpolated():
    assert table_of(t1=0.010, t9=0.018).seconds(5) == pytest.approx(0.014, rel=0.01)


def test_beyond_the_largest_it_takes_as_much_until_somebody_tries():
    table = table_of(t1=0.010)
    assert table.seconds(5) == 0.010
    for _ in range(100):
        table.record(5, seconds=0.03)
    assert table.seconds(5) == pytest.approx(0.03, rel=0.03)


def test_a_dear_step_is_not_believed_at_once_for_it_may_have_been_disturbed():
    table = table_of(t1=0.010)
    table.record(5, seconds=0.10)
    assert table.seconds(5) < 0.05
    for _ in range(10):
        table.record(5, seconds=0.012)
    assert table.seconds(5) < 0.03


def test_more_tokens_never_take_less_time():
    assert table_of(t1=0.020, t4=0.010).seconds(4) == 0.020


def test_disturbed_steps_count_little_however_long_they_take():
    rng = random.Random(0)
    table = StepTable()
    for _ in range(300):
        table.record(1, seconds=0.5 if rng.random() < 0.3 else 0.01)
    assert table.seconds(1) == pytest.approx(0.01, rel=0.1)


def test_it_follows_steps_that_become_slower():
    table = table_of(t1=0.01)
    for _ in range(60):
        table.record(1, seconds=0.03)
    assert table.seconds(1) == pytest.approx(0.03)


def test_what_was_not_seen_for_long_is_forgotten():
    table = table_of(num_steps=1, t4=9.0)
    for _ in range(1100):
        table.record(1, seconds=0.01)
    assert table.seconds(4) == pytest.approx(0.01)


@pytest.mark.parametrize("tokens", [20, 33, 100, 513, 8000])
def test_large_numbers_share_entries_with_their_neighbours_only(tokens):
    table = table_of(**{f"t{tokens}": 0.5, f"t{tokens * 2}": 1.0})
    assert table.seconds(tokens) == pytest.approx(0.5, rel=0.01)
    assert table.seconds(tokens * 2) == pytest.approx(1.0, rel=0.01)


def test_a_step_that_took_no_time_says_nothing():
    table = table_of(num_steps=1, t1=0.0)
    assert not table.is_known
