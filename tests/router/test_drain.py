"""A replica leaves: it finishes what it can, moves the rest, and is out inside a stated time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.drain import (
    DrainLimits,
    DrainState,
    Exit,
    MigrateRequest,
    RefuseWork,
    ReplicaDrain,
)

LIMITS = DrainLimits(grace_s=5.0, deadline_s=30.0, max_parallel_migrations=2, retry_s=1.0)


def a_drain(*requests: str) -> ReplicaDrain:
    drain = ReplicaDrain(LIMITS)
    drain.begin(requests, 0.0)
    return drain


def test_a_replica_without_requests_exits_at_once():
    drain = ReplicaDrain(LIMITS)
    assert drain.begin([], 0.0) == (RefuseWork(), Exit(0))
    assert drain.on_tick(1.0) == ()


def test_requests_that_end_in_the_grace_time_are_waited_for():
    drain = a_drain("r1", "r2")
    assert drain.on_request_ended("r1", 1.0) == ()
    assert drain.on_request_ended("r2", 2.0) == (Exit(0),)


def test_after_the_grace_time_requests_move_a_few_at_a_time():
    drain = a_drain("r1", "r2", "r3")
    assert drain.on_tick(4.9) == ()
    assert drain.on_tick(5.0) == (MigrateRequest("r1"), MigrateRequest("r2"))
    assert drain.on_request_ended("r1", 5.5) == (MigrateRequest("r3"),)
    drain.on_request_ended("r2", 6.0)
    assert drain.on_request_ended("r3", 6.0) == (Exit(0),)


def test_a_request_that_nobody_takes_is_tried_again():
    drain = a_drain("r1")
    drain.on_tick(5.0)
    assert drain.on_migration_failed("r1", 5.1) == ()
    assert drain.on_tick(6.0) == ()
    assert drain.on_tick(6.1) == (MigrateRequest("r1"),)


def test_the_deadline_ends_what_is_left_and_says_how_many():
    drain = a_drain("r1", "r2")
    drain.on_tick(5.0)
    assert drain.on_tick(30.0) == (Exit(2),)
    assert drain.state is DrainState.EXITED


def test_a_request_that_arrives_late_is_served_too():
    drain = a_drain("r1")
    drain.on_request_opened("r2", 0.5)
    assert drain.on_request_ended("r1", 1.0) == ()
    assert drain.on_request_ended("r2", 2.0) == (Exit(0),)


def test_a_second_begin_changes_nothing():
    drain = a_drain("r1")
    assert drain.begin(["r1", "r9"], 4.0) == ()
    assert drain.num_open == 1
    assert drain.on_tick(5.0) == (MigrateRequest("r1"),)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ended", "failed", "opened", "tick"]),
            st.integers(0, 5),
            st.floats(0.0, 3.0),
        ),
        max_size=60,
    )
)
def test_it_exits_once_in_time_and_never_before_its_requests_unless_it_must(
    steps: list[tuple[str, int, float]],
):
    drain = ReplicaDrain(LIMITS)
    commands = list(drain.begin([f"r{n}" for n in range(4)], 0.0))
    now = 0.0
    for step, number, wait_s in steps:
        now += wait_s
        if step == "ended":
            commands += drain.on_request_ended(f"r{number}", now)
        elif step == "failed":
            commands += drain.on_migration_failed(f"r{number}", now)
        elif step == "opened":
            drain.on_request_opened(f"r{number}", now)
        else:
            commands += drain.on_tick(now)
        drain.check()
        exits = [command for command in commands if isinstance(command, Exit)]
        assert len(exits) <= 1
        assert all(command.num_open == 0 or now >= 30.0 for command in exits)
    commands += drain.on_tick(max(now, 30.0))
    assert drain.state is DrainState.EXITED


@pytest.mark.parametrize("bad", [{"grace_s": 99.0}, {"max_parallel_migrations": 0}])
def test_a_bad_limit_names_itself(bad: dict[str, float]):
    with pytest.raises(ValueError, match=next(iter(bad))):
        DrainLimits(**bad)
