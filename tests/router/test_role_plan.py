"""Replicas are lent under lasting pressure, given back when it is over, and never beyond bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.role_plan import ChangeRole, RoleBounds, RoleMember, RolePlanner

BOUNDS = RoleBounds(min_prefill=1, min_decode=1, max_lent=1, hold_s=10.0)


def members(prefill: int = 2, decode: int = 3) -> list[RoleMember]:
    return [RoleMember(f"p{n}", "prefill", "prefill", 10 * n) for n in range(prefill)] + [
        RoleMember(f"d{n}", "decode", "decode", 10 * n) for n in range(decode)
    ]


def applied(group: list[RoleMember], change: ChangeRole | None) -> list[RoleMember]:
    if change is None:
        return group
    return [
        RoleMember(m.replica_id, m.home, change.role, m.load_tokens)
        if m.replica_id == change.replica_id
        else m
        for m in group
    ]


def plan(
    planner: RolePlanner, group: list[RoleMember], now: float, *, prefill: float, decode: float
) -> ChangeRole | None:
    return planner.plan(group, prefill_pressure=prefill, decode_pressure=decode, now=now)


def test_lasting_pressure_borrows_the_lightest_of_the_other_pool():
    planner = RolePlanner(BOUNDS)
    assert plan(planner, members(), 0.0, prefill=2.0, decode=0.1) is None
    assert plan(planner, members(), 9.9, prefill=2.0, decode=0.1) is None
    change = plan(planner, members(), 10.0, prefill=2.0, decode=0.1)
    assert change == ChangeRole("d0", "mixed", "lend")


def test_a_short_peak_changes_nothing():
    planner = RolePlanner(BOUNDS)
    plan(planner, members(), 0.0, prefill=2.0, decode=0.1)
    plan(planner, members(), 5.0, prefill=0.9, decode=0.1)
    assert plan(planner, members(), 12.0, prefill=2.0, decode=0.1) is None


def test_a_lent_replica_goes_home_when_the_pressure_is_over():
    planner = RolePlanner(BOUNDS)
    plan(planner, members(), 0.0, prefill=2.0, decode=0.1)
    group = applied(members(), plan(planner, members(), 10.0, prefill=2.0, decode=0.1))
    assert plan(planner, group, 20.0, prefill=0.7, decode=0.1) is None
    assert plan(planner, group, 25.0, prefill=0.3, decode=0.1) is None
    assert plan(planner, group, 35.0, prefill=0.3, decode=0.1) == ChangeRole(
        "d0", "decode", "return"
    )


def test_its_own_pool_in_need_calls_it_back():
    planner = RolePlanner(BOUNDS)
    plan(planner, members(), 0.0, prefill=2.0, decode=0.1)
    group = applied(members(), plan(planner, members(), 10.0, prefill=2.0, decode=0.1))
    plan(planner, group, 20.0, prefill=2.0, decode=1.5)
    assert plan(planner, group, 30.0, prefill=2.0, decode=1.5) == ChangeRole(
        "d0", "decode", "return"
    )


def test_nobody_is_lent_when_both_pools_are_full_or_the_lender_is_at_its_bound():
    both = RolePlanner(BOUNDS)
    plan(both, members(), 0.0, prefill=2.0, decode=2.0)
    assert plan(both, members(), 20.0, prefill=2.0, decode=2.0) is None
    small = RolePlanner(BOUNDS)
    plan(small, members(decode=1), 0.0, prefill=2.0, decode=0.0)
    assert plan(small, members(decode=1), 20.0, prefill=2.0, decode=0.0) is None


def test_roles_stay_as_they_are_unless_a_setting_lets_them_move():
    planner = RolePlanner(RoleBounds())
    plan(planner, members(), 0.0, prefill=9.0, decode=0.0)
    assert plan(planner, members(), 99.0, prefill=9.0, decode=0.0) is None


pressures = st.floats(0.0, 3.0)


@given(st.lists(st.tuples(pressures, pressures, st.floats(0.1, 20.0)), max_size=60))
def test_bounds_hold_and_changes_keep_their_distance_whatever_the_load(
    loads: list[tuple[float, float, float]],
):
    bounds = RoleBounds(min_prefill=1, min_decode=2, max_lent=2, hold_s=10.0)
    planner = RolePlanner(bounds)
    group = members(prefill=3, decode=3)
    now, changed_at = 0.0, -100.0
    for prefill, decode, wait_s in loads:
        now += wait_s
        change = plan(planner, group, now, prefill=prefill, decode=decode)
        if change is not None:
            assert now - changed_at >= 10.0
            changed_at = now
        group = applied(group, change)
        assert sum(m.role == "prefill" for m in group) >= 1
        assert sum(m.role == "decode" for m in group) >= 2
        assert sum(m.role == "mixed" for m in group) <= 2
        assert all(m.role in ("mixed", m.home) for m in group)


@pytest.mark.parametrize("bad", [{"max_lent": -1}, {"leave_pressure": 1.0}, {"hold_s": -1.0}])
def test_a_bad_bound_names_itself(bad: dict[str, float]):
    with pytest.raises(ValueError, match=next(iter(bad))):
        RoleBounds(**bad)
