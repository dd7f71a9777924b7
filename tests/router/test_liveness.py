"""What the events of a stream make of a replica."""

import pytest

from router.liveness import ReplicaLiveness
from router.replica_status import ReplicaState


def a_liveness() -> ReplicaLiveness:
    return ReplicaLiveness(heartbeat_interval_s=0.1, suspect_after_missed=3, stuck_after_s=30.0)


def beat(
    liveness: ReplicaLiveness,
    now: float,
    *,
    age_s: float = 0.0,
    work: bool = False,
    accepting: bool = True,
) -> None:
    liveness.on_heartbeat(now, last_step_age_s=age_s, has_work=work, is_accepting=accepting)


def a_live_one(now: float = 0.0) -> ReplicaLiveness:
    liveness = a_liveness()
    liveness.on_open(now)
    beat(liveness, now)
    return liveness


def test_a_replica_is_starting_until_its_stream_is_open_and_its_engine_ready():
    liveness = a_liveness()
    assert liveness.state(0.0) is ReplicaState.STARTING
    liveness.on_open(0.0)
    assert liveness.state(0.0) is ReplicaState.STARTING
    beat(liveness, 0.0, accepting=False)
    assert liveness.state(0.0) is ReplicaState.STARTING
    beat(liveness, 0.1)
    assert liveness.state(0.1) is ReplicaState.ACTIVE


def test_three_missed_heartbeats_make_it_suspect_and_one_heard_clears_it():
    liveness = a_live_one()
    assert liveness.state(0.29) is ReplicaState.ACTIVE
    assert liveness.state(0.31) is ReplicaState.SUSPECT
    assert liveness.state(3600.0) is ReplicaState.SUSPECT
    beat(liveness, 3600.0)
    assert liveness.state(3600.0) is ReplicaState.ACTIVE


def test_a_step_is_as_good_as_a_heartbeat():
    liveness = a_live_one()
    liveness.on_step(0.3)
    assert liveness.state(0.5) is ReplicaState.ACTIVE


def test_a_broken_stream_is_suspect_at_once_and_active_when_it_is_back():
    liveness = a_live_one()
    liveness.on_break()
    assert liveness.state(0.01) is ReplicaState.SUSPECT
    liveness.on_open(0.2)
    assert liveness.state(0.2) is ReplicaState.ACTIVE


def test_a_lost_stream_takes_nothing_until_a_new_one_says_it_is_ready():
    liveness = a_live_one()
    liveness.on_lost()
    assert liveness.state(0.1) is ReplicaState.STARTING
    liveness.on_open(1.0)
    assert liveness.state(1.0) is ReplicaState.STARTING
    beat(liveness, 1.0)
    assert liveness.state(1.0) is ReplicaState.ACTIVE


def test_leaving_the_set_is_draining_until_the_stream_ends():
    liveness = a_live_one()
    liveness.on_left_set(0.0)
    assert liveness.state(0.0) is ReplicaState.DRAINING
    beat(liveness, 0.1)
    assert liveness.state(0.1) is ReplicaState.DRAINING
    liveness.on_lost()
    assert liveness.state(0.2) is ReplicaState.GONE


def test_leaving_the_set_before_the_stream_opened_is_gone():
    liveness = a_liveness()
    liveness.on_left_set(0.0)
    assert liveness.state(0.0) is ReplicaState.GONE


def test_a_replica_that_answers_without_stepping_is_stuck():
    liveness = a_live_one()
    beat(liveness, 40.0, age_s=25.0, work=True)
    assert liveness.stuck_s(40.0) == 0.0
    beat(liveness, 46.0, age_s=31.0, work=True)
    assert liveness.stuck_s(46.0) == pytest.approx(31.0)
    assert liveness.state(46.0) is ReplicaState.ACTIVE


def test_an_idle_replica_is_never_stuck():
    liveness = a_live_one()
    beat(liveness, 1000.0, age_s=999.0, work=False)
    assert liveness.stuck_s(1000.0) == 0.0


def test_a_slow_replica_advances_until_it_is_stuck_lost_or_has_no_work():
    liveness = a_live_one()
    beat(liveness, 10.0, age_s=9.0, work=True)
    assert liveness.is_advancing(10.0)
    assert liveness.is_advancing(11.0), "a late heartbeat alone does not end it"
    beat(liveness, 40.0, age_s=39.0, work=True)
    assert not liveness.is_advancing(40.0)
    beat(liveness, 41.0, work=False)
    assert not liveness.is_advancing(41.0)
    beat(liveness, 42.0, work=True)
    liveness.on_lost()
    assert not liveness.is_advancing(42.0)
