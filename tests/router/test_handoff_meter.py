"""What a hand-off is expected to cost follows what was measured, but not one bad moment."""

import pytest

from router.handoff_meter import HandoffMeter


def after(*exposed_s: float) -> float:
    meter = HandoffMeter(first_s=0.02)
    for number, seconds in enumerate(exposed_s):
        meter.see(seconds, float(number))
    return meter.expected_s(float(len(exposed_s) - 1))


def test_nothing_seen_is_what_was_to_be_expected():
    assert HandoffMeter(first_s=0.02).expected_s(1000.0) == 0.02


@pytest.mark.parametrize("num_before", [0, 1, 20])
def test_one_hand_off_that_was_held_up_does_not_make_the_next_ones_dear(num_before: int):
    assert after(*[0.02] * num_before, 8.0) < 0.04


def test_a_link_that_has_become_slow_is_believed_after_a_dozen():
    assert after(*[0.02] * 20, *[2.0] * 15) > 1.0


def test_a_quick_link_is_believed_as_soon():
    assert after(*[0.002] * 15) < 0.004


def test_what_is_not_seen_again_is_believed_half_as_much_after_a_minute():
    meter = HandoffMeter(first_s=0.02)
    meter.see(0.02, 0.0)
    assert meter.expected_s(60.0) == pytest.approx(0.01)
    assert [meter.trust(at) for at in (0.0, 60.0, 120.0)] == pytest.approx([1.0, 0.5, 0.25])
