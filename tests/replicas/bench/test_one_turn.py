"""Settings of a turn reach the engine or its scheduler, and a wrong name is refused."""

import pytest

from replicas.bench.one_turn import with_settings
from replicas.config import EngineConfig

CONFIG = EngineConfig(model="somewhere")


def test_settings_go_to_the_engine_or_to_its_scheduler():
    changed = with_settings(CONFIG, ["num_threads=2", "max_num_seqs=32", "dtype=float32"])
    assert (changed.num_threads, changed.dtype) == (2, "float32")
    assert changed.scheduler.max_num_seqs == 32
    assert changed.scheduler.block_size == CONFIG.scheduler.block_size


def test_a_switch_is_written_as_json_does():
    assert not with_settings(CONFIG, ["async_scheduling=false"]).scheduler.async_scheduling


def test_a_setting_that_there_is_not_is_named():
    with pytest.raises(ValueError, match="warp_speed: no such setting"):
        with_settings(CONFIG, ["warp_speed=9"])


def test_settings_of_speculation_are_known_too():
    changed = with_settings(CONFIG, ["speculative_method=off", "max_num_seqs=3"]).scheduler
    assert (changed.speculation.speculative_method, changed.max_num_seqs) == ("off", 3)
