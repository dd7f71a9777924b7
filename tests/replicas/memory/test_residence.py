"""How long what nobody needs stays findable, from how fast places are taken."""

from replicas.memory.residence import Residence
from tests.replicas.engine_harness import ManualClock


def test_before_anything_was_taken_blocks_last_for_ever():
    residence = Residence(clock=ManualClock())
    assert residence.device_s(10) == float("inf")
    assert residence.host_s(10) == float("inf")


def test_blocks_last_as_long_as_free_ones_do_at_the_measured_rate():
    clock = ManualClock()
    residence = Residence(clock=clock)
    clock.advance(2.0)
    residence.note_step(num_tokens=100, num_copied_out=10)
    assert residence.device_s(500) == 10.0
    assert residence.host_s(50) == 10.0


def test_idle_time_counts():
    clock = ManualClock()
    residence = Residence(clock=clock)
    residence.note_step(num_tokens=100, num_copied_out=0)
    clock.advance(10.0)
    residence.note_step(num_tokens=0, num_copied_out=0)
    assert residence.device_s(10) == 1.0
