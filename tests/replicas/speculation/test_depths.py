"""As many guesses as make the engine faster."""

from hypothesis import given
from hypothesis import strategies as st

from replicas.speculation.depths import StepCosts, choose_depths


def cpu_step_s(num_tokens):
    """Nearly flat up to 8 tokens, then 1 ms each: the shape of a small model on two cores."""
    return 0.011 + 0.0002 * num_tokens + 0.001 * max(0, num_tokens - 8)


def depths(chances, *, num_tokens=1, most=100, seconds=cpu_step_s, overhead_s=0.0, pass_s=0.0):
    costs = StepCosts(seconds, overhead_s, pass_s)
    return choose_depths(chances, num_tokens=num_tokens, most=most, costs=costs)


def test_a_single_stream_that_repeats_is_guessed_as_far_as_rows_are_free():
    assert depths([[0.95**n for n in range(1, 8)]]) == [7]


def test_an_unlikely_guess_is_not_worth_a_row():
    assert depths([[0.04, 0.01]]) == [0]


def test_a_full_batch_gets_none():
    assert depths([[0.8, 0.6, 0.5]] * 32, num_tokens=32) == [0] * 32


def test_in_a_full_step_not_even_a_certain_guess_is_taken_where_rows_are_all_that_costs():
    assert depths([[1.0, 1.0]] * 4, num_tokens=512, seconds=lambda n: 0.001 * n) == [0] * 4


def test_room_goes_to_whoever_uses_it_best():
    assert depths([[0.3, 0.1], [0.9, 0.8], [0.02]], most=2) == [0, 2, 0]


def test_leaving_the_next_step_unplanned_has_to_pay_too():
    assert depths([[0.3]]) == [1]
    assert depths([[0.3]], overhead_s=0.01) == [0]


def test_guesses_that_take_time_to_make_have_to_pay_for_it():
    chances = [[0.9, 0.8, 0.7, 0.6]]
    assert depths(chances) == [4]
    assert 0 < depths(chances, pass_s=0.005)[0] < 4
    assert depths(chances, pass_s=0.02) == [0]


def test_nothing_is_taken_where_nothing_fits():
    assert depths([[0.9]], most=0) == [0]


CHANCES = st.lists(
    st.lists(st.floats(0.0, 1.0), max_size=6).map(lambda each: sorted(each, reverse=True)),
    min_size=1,
    max_size=6,
)


@given(CHANCES, st.integers(1, 40), st.integers(0, 10))
def test_no_more_than_there_are_and_no_more_than_fit(chances, num_tokens, most):
    chosen = depths(chances, num_tokens=num_tokens, most=most)
    assert all(depth <= len(own) for depth, own in zip(chosen, chances, strict=True))
    assert sum(chosen) <= most


@given(CHANCES, st.integers(1, 40))
def test_what_is_chosen_is_expected_to_be_faster_than_none(chances, num_tokens):
    chosen = depths(chances, num_tokens=num_tokens)
    gained = sum(sum(own[:depth]) for own, depth in zip(chances, chosen, strict=True))
    rate = (num_tokens + gained) / cpu_step_s(num_tokens + sum(chosen))
    assert rate >= num_tokens / cpu_step_s(num_tokens)
