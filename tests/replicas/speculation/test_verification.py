"""A guess holds as long as it is what would have come anyway."""

from replicas.speculation.verification import num_confirmed


def test_guesses_hold_up_to_the_first_wrong_one():
    assert num_confirmed([5, 6, 7], [5, 6, 9, 7]) == 2


def test_all_may_hold_and_none_may():
    assert num_confirmed([5, 6], [5, 6, 1]) == 2
    assert num_confirmed([5, 6], [4, 6, 1]) == 0


def test_a_right_guess_after_a_wrong_one_is_nothing():
    assert num_confirmed([1, 2], [9, 2, 2]) == 0
