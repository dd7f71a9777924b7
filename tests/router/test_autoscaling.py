"""How many replicas: growth on lasting need, shrinking only when it is safe, zero and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.autoscaling import PoolLoad, PoolScaler, ScalingDecision, ScalingLimits, share_out

LIMITS = ScalingLimits(
    min_replicas=1,
    max_replicas=8,
    target_backlog_s=5.0,
    upscale_delay_s=10.0,
    downscale_delay_s=60.0,
    idle_to_zero_s=100.0,
)


def a_load(ready: int = 2, starting: int = 0, **fields: float) -> PoolLoad:
    return PoolLoad(ready, starting, **{"tokens_per_s": 1000.0, **fields})


def last(loads: list[tuple[float, PoolLoad]], limits: ScalingLimits = LIMITS) -> ScalingDecision:
    scaler = PoolScaler(limits)
    for now, load in loads:
        decision = scaler.decide(load, now)
    return decision


def lasting(load: PoolLoad, seconds: float, limits: ScalingLimits = LIMITS) -> ScalingDecision:
    return last([(0.0, load), (seconds / 2, load), (seconds, load)], limits)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (a_load(backlog_tokens=20_000), ScalingDecision(4, "backlog")),
        (a_load(kv_ratio=0.99), ScalingDecision(3, "kv_pressure")),
        (a_load(attainment=0.5), ScalingDecision(3, "slo")),
    ],
)
def test_lasting_need_of_any_kind_grows_the_pool(load: PoolLoad, expected: ScalingDecision):
    assert lasting(load, 9.0) == ScalingDecision(2, "steady")
    assert lasting(load, 10.0) == expected


def test_a_short_peak_grows_nothing():
    peak, calm = a_load(backlog_tokens=40_000), a_load(backlog_tokens=5_000)
    assert last([(0.0, peak), (8.0, peak), (9.0, calm), (15.0, peak)]).num_replicas == 2


def test_replicas_that_start_are_counted():
    assert lasting(a_load(2, starting=2, backlog_tokens=20_000), 30.0).num_replicas == 4
    assert lasting(a_load(2, starting=1, attainment=0.1), 30.0).num_replicas == 3


def test_growth_is_at_most_a_doubling_at_once():
    assert lasting(a_load(1, backlog_tokens=10**6), 10.0).num_replicas == 2
    assert lasting(a_load(3, backlog_tokens=10**6), 10.0).num_replicas == 6


def test_a_pace_that_is_unknown_grows_nothing():
    assert lasting(a_load(2, tokens_per_s=0.0, backlog_tokens=10**6), 99.0).num_replicas == 2


def test_a_pool_shrinks_only_after_a_long_calm():
    calm = a_load(4, backlog_tokens=2000)
    assert lasting(calm, 59.0).num_replicas == 4
    assert lasting(calm, 60.0) == ScalingDecision(1, "calm")
    busy = a_load(4, backlog_tokens=14_000)
    assert last([(0.0, calm), (30.0, busy), (61.0, calm)]).num_replicas == 3
    assert last([(0.0, calm), (30.0, busy), (91.0, calm)]).num_replicas == 1


@pytest.mark.parametrize(
    "load",
    [
        a_load(4, backlog_tokens=9_500),
        a_load(4, kv_ratio=0.4),
        a_load(4, starting=1),
        a_load(4, attainment=0.9),
    ],
)
def test_a_pool_does_not_shrink_when_the_rest_could_not_absorb_it(load: PoolLoad):
    assert lasting(load, 200.0).num_replicas >= load.num_ready


def test_an_idle_model_goes_to_zero_only_if_that_is_allowed():
    idle = a_load(1)
    assert lasting(idle, 1000.0).num_replicas == 1
    sleepy = ScalingLimits(min_replicas=0, max_replicas=8, idle_to_zero_s=100.0)
    assert lasting(idle, 99.0, sleepy).num_replicas == 1
    assert lasting(idle, 100.0, sleepy) == ScalingDecision(0, "idle")


def test_a_held_request_wakes_a_sleeping_model_at_once():
    sleepy = ScalingLimits(min_replicas=0, max_replicas=8)
    asleep = PoolLoad(0, 0)
    assert lasting(asleep, 500.0, sleepy).num_replicas == 0
    held = PoolLoad(0, 0, num_held=3)
    assert last([(0.0, asleep), (1.0, held)], sleepy) == ScalingDecision(1, "wake")
    waking = PoolLoad(0, 1, num_held=3)
    assert last([(0.0, held), (1.0, waking)], sleepy).num_replicas == 1


def test_bounds_are_kept_whatever_is_there():
    assert lasting(a_load(12), 0.0) == ScalingDecision(8, "bounds")
    assert lasting(PoolLoad(0, 0), 0.0) == ScalingDecision(1, "bounds")


def test_traffic_that_swings_around_the_target_does_not_swing_the_pool():
    scaler = PoolScaler(LIMITS)
    present, changes = 2, 0
    for second in range(0, 600, 2):
        tokens = 12_000 if (second // 20) % 2 else 8_000
        decision = scaler.decide(a_load(present, backlog_tokens=tokens), float(second))
        changes += decision.num_replicas != present
        present = decision.num_replicas
    assert present == 3
    assert changes == 1


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10),
            st.integers(0, 3),
            st.integers(0, 10**5),
            st.floats(0.0, 1.0),
            st.one_of(st.none(), st.floats(0.0, 1.0)),
            st.floats(0.1, 50.0),
        ),
        max_size=40,
    )
)
def test_decisions_stay_within_bounds(
    history: list[tuple[int, int, int, float, float | None, float]],
):
    scaler = PoolScaler(LIMITS)
    now = 0.0
    for ready, starting, backlog, kv_ratio, attainment, wait_s in history:
        now += wait_s
        load = a_load(
            ready, starting, backlog_tokens=backlog, kv_ratio=kv_ratio, attainment=attainment
        )
        assert 1 <= scaler.decide(load, now).num_replicas <= 8


def test_too_few_replicas_are_shared_by_need():
    minimums = {"prefill": 1, "decode": 1}
    assert share_out({"prefill": 6, "decode": 6}, minimums=minimums, max_total=6) == {
        "prefill": 3,
        "decode": 3,
    }
    assert share_out({"prefill": 8, "decode": 2}, minimums=minimums, max_total=5) == {
        "prefill": 4,
        "decode": 1,
    }
    assert share_out({"prefill": 1, "decode": 2}, minimums=minimums, max_total=9) == {
        "prefill": 1,
        "decode": 2,
    }
    with pytest.raises(ValueError, match="minimums"):
        share_out({"prefill": 1, "decode": 1}, minimums=minimums, max_total=1)


@pytest.mark.parametrize(
    "bad",
    [
        {"min_replicas": 2},
        {"max_replicas": 0, "min_replicas": 0},
        {"target_kv_ratio": 0.0},
        {"target_backlog_s": 0.0},
        {"max_growth": 1.0},
        {"upscale_delay_s": -1.0},
    ],
)
def test_a_bad_limit_names_itself(bad: dict[str, float]):
    with pytest.raises(ValueError, match=next(iter(bad))):
        ScalingLimits(**bad)
