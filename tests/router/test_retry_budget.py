"""Retries add a bounded share of work, whatever happens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.retry_budget import RetryBudget, RetryLimits


def test_a_request_is_tried_a_few_times_only():
    budget = RetryBudget(RetryLimits(max_attempts=3), now=0.0)
    assert budget.spend(attempts_made=2, now=0.0)
    assert not budget.spend(attempts_made=3, now=0.0)
    assert (budget.num_spent, budget.num_denied) == (1, 1)


def test_the_loss_of_a_full_replica_is_within_the_budget():
    budget = RetryBudget(RetryLimits(burst_retries=256), now=0.0)
    assert all(budget.spend(attempts_made=1, now=0.0) for _ in range(256))
    assert not budget.spend(attempts_made=1, now=0.0)


def test_time_alone_pays_for_a_trickle():
    budget = RetryBudget(RetryLimits(burst_retries=1, min_retries_per_s=2.0), now=0.0)
    assert budget.spend(attempts_made=1, now=0.0)
    assert not budget.spend(attempts_made=1, now=0.4)
    assert budget.spend(attempts_made=1, now=0.5)


def test_a_clock_that_is_read_out_of_order_pays_nothing_twice():
    budget = RetryBudget(RetryLimits(burst_retries=10, min_retries_per_s=1.0), now=10.0)
    for _ in range(10):
        budget.spend(attempts_made=1, now=10.0)
    for now in (11.0, 10.0, 11.0, 10.5):
        budget.available(now)
    assert budget.available(11.0) == pytest.approx(1.0)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 2.0)), max_size=200))
def test_retries_never_exceed_burst_plus_share_plus_trickle(events: list[tuple[bool, float]]):
    limits = RetryLimits(burst_retries=5, retry_ratio=0.25, min_retries_per_s=0.5)
    budget = RetryBudget(limits, now=0.0)
    now, num_requests = 0.0, 0
    for is_request, wait_s in events:
        now += wait_s
        if is_request:
            budget.on_request()
            num_requests += 1
        else:
            budget.spend(attempts_made=1, now=now)
        assert budget.num_spent <= 5 + 0.25 * num_requests + 0.5 * now + 1e-6


@pytest.mark.parametrize(
    "bad", [{"max_attempts": 0}, {"burst_retries": 0.0}, {"retry_ratio": -1.0}]
)
def test_a_bad_limit_names_itself(bad: dict[str, float]):
    with pytest.raises(ValueError, match=next(iter(bad))):
        RetryLimits(**bad)
