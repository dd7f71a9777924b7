"""A replica's pace is found from its steps, whatever they mix, and follows when it changes."""

import random

import pytest

from router.pace import Pace, PaceMeter, StepSample, mean_pace


class Replica:
    """Steps of a replica whose true pace is known."""

    def __init__(self, *, base_s: float = 0.02, row_s: float = 0.001, token_s: float = 0.0005):
        self.meter = PaceMeter()
        self.base_s, self.row_s, self.token_s = base_s, row_s, token_s
        self.num_steps = 0

    def step(self, *, prefill: int = 0, decode: int = 0, held_up_s: float = 0.0) -> None:
        decode_s = self.base_s + self.row_s * decode if decode else 0.0
        run_s = decode_s + self.token_s * prefill + held_up_s
        sample = StepSample(self.num_steps, prefill, decode, run_s)
        self.meter.see(sample, finished_total=0, generated_total=0)
        self.num_steps += 1


def test_nothing_is_claimed_before_anything_was_seen():
    assert not PaceMeter().pace.is_measured
    replica = Replica()
    replica.step(prefill=100)
    assert not replica.meter.pace.is_measured


def test_base_row_and_token_are_told_apart():
    replica = Replica()
    random_source = random.Random(1)
    for _ in range(200):
        replica.step(decode=random_source.randint(1, 64))
        replica.step(prefill=random_source.randint(1, 512), decode=random_source.randint(0, 64))
    pace = replica.meter.pace
    assert pace.decode_base_s == pytest.approx(0.02, rel=0.02)
    assert pace.decode_row_s == pytest.approx(0.001, rel=0.02)
    assert pace.prefill_token_s == pytest.approx(0.0005, rel=0.05)


def test_steps_of_one_size_only_give_their_mean():
    replica = Replica()
    for _ in range(50):
        replica.step(decode=8)
    assert replica.meter.pace.decode_step_s(8) == pytest.approx(0.028)
    assert replica.meter.pace.decode_row_s == 0.0


def test_a_replica_that_slows_down_is_believed_soon():
    replica = Replica()
    for _ in range(300):
        replica.step(prefill=256)
    replica.token_s = 0.002
    for _ in range(200):
        replica.step(prefill=256)
    assert replica.meter.pace.prefill_token_s == pytest.approx(0.002, rel=0.05)


@pytest.mark.parametrize("num_before", [0, 1, 5, 50])
def test_one_step_that_is_held_up_spoils_no_estimate(num_before: int):
    replica = Replica()
    for _ in range(num_before):
        replica.step(prefill=128)
        replica.step(decode=4)
    replica.step(prefill=128, held_up_s=5.0)
    replica.step(decode=4, held_up_s=5.0)
    for _ in range(5):
        replica.step(prefill=128)
        replica.step(decode=4)
    assert replica.meter.pace.prefill_token_s < 2 * 0.0005
    assert replica.meter.pace.decode_step_s(4) < 2 * 0.024


def test_a_replica_that_becomes_many_times_slower_is_believed_in_the_end():
    replica = Replica()
    for _ in range(300):
        replica.step(prefill=256)
        replica.step(decode=8)
    replica.token_s, replica.base_s, replica.row_s = 0.02, 0.8, 0.04
    for _ in range(300):
        replica.step(prefill=256)
        replica.step(decode=8)
    assert replica.meter.pace.prefill_token_s == pytest.approx(0.02, rel=0.05)
    assert replica.meter.pace.decode_step_s(8) == pytest.approx(1.12, rel=0.05)


def test_what_short_prompts_cost_each_token_does_not_stand_for_long_ones():
    meter = PaceMeter()
    for step in range(100):
        meter.see(StepSample(step, 8, 0, 0.02), finished_total=0, generated_total=0)
    assert meter.pace.prefill_token_s == pytest.approx(0.0025)
    meter.see(StepSample(100, 512, 0, 0.12), finished_total=0, generated_total=0)
    assert meter.pace.prefill_token_s < 0.0003


def test_the_share_that_prefills_take_from_decodes_is_seen():
    replica = Replica(base_s=0.02, row_s=0.0, token_s=0.0005)
    for _ in range(200):
        replica.step(decode=8)
        replica.step(prefill=120, decode=8)
    assert replica.meter.pace.prefill_share == pytest.approx(0.6, abs=0.02)


def test_a_report_that_comes_twice_counts_once():
    meter = PaceMeter()
    for seconds in (0.01, 5.0, 5.0):
        meter.see(StepSample(7, 0, 1, seconds), finished_total=0, generated_total=0)
    assert meter.pace.decode_step_s(1) == pytest.approx(0.01)


def test_the_mean_output_is_measured_from_totals_and_survives_a_new_engine():
    meter = PaceMeter()
    for step, (finished, generated) in enumerate([(0, 0), (0, 50), (2, 100), (4, 220), (0, 0)]):
        meter.see(StepSample(step, 0, 1, 0.01), finished_total=finished, generated_total=generated)
    assert meter.pace.mean_output_tokens == pytest.approx(55, rel=0.02)


def test_an_unmeasured_replica_is_expected_to_be_like_the_others():
    measured = Pace(0.02, 0.001, 0.0005, 0.5, 100.0)
    assert mean_pace([measured, Pace()]) == Pace(0.02, 0.001, 0.0005, 0.0, 100.0)
    assert mean_pace([Pace()]) == Pace()
