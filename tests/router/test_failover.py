"""One request over several attempts: each token once, in order, from one attempt at a time."""

from hypothesis import given
from hypothesis import strategies as st

from router.failover import (
    CancelAttempt,
    FailoverLimits,
    Failure,
    GiveUp,
    RequestFailover,
    Submit,
)
from router.retry_budget import RetryBudget, RetryLimits

LIMITS = FailoverLimits(deadline_s=100.0, orphan_lease_s=10.0, cancel_interval_s=1.0)


def a_request(num_choices: int = 1, **limits: float) -> RequestFailover:
    budget = RetryBudget(RetryLimits(**{"max_attempts": 3, **limits}), now=0.0)
    request = RequestFailover(num_choices=num_choices, budget=budget, limits=LIMITS, now=0.0)
    request.on_sent(0, "a")
    return request


def test_a_lost_replica_is_a_new_attempt_from_what_the_client_has():
    request = a_request()
    request.on_tokens(0, 0, 0, (7, 8), now=1.0)
    assert request.on_failure(0, Failure.LOST, now=1.0) == (
        CancelAttempt(0, "a"),
        Submit(1, (7, 8), frozenset({"a"})),
    )
    assert request.on_tokens(1, 0, 2, (9,), now=2.0) == ((9,), ())
    assert request.accepted() == (7, 8, 9)


def test_the_first_attempt_is_not_heard_after_the_second_began():
    request = a_request()
    request.on_failure(0, Failure.HUNG, now=1.0)
    assert request.on_tokens(0, 0, 0, (1, 2), now=2.0) == ((), ())
    assert not request.on_choice_end(0, 0)
    assert request.on_failure(0, Failure.LOST, now=2.0) == ()
    assert request.num_ignored_entries == 2


def test_tokens_that_are_known_are_passed_over():
    request = a_request()
    request.on_tokens(0, 0, 0, (1, 2, 3), now=0.0)
    assert request.on_tokens(0, 0, 1, (2, 3, 4), now=0.0) == ((4,), ())
    assert request.on_tokens(0, 0, 0, (1,), now=0.0) == ((), ())


def test_a_hole_in_the_tokens_is_a_failure_of_the_attempt():
    request = a_request()
    tokens, commands = request.on_tokens(0, 0, 1, (2,), now=0.0)
    assert tokens == ()
    assert Submit(1, (), frozenset({"a"})) in commands


def test_several_choices_are_made_again_from_the_start():
    request = a_request(num_choices=2)
    request.on_tokens(0, 0, 0, (1, 2), now=0.0)
    assert request.on_choice_end(0, 1)
    commands = request.on_failure(0, Failure.LOST, now=0.0)
    assert commands[-1] == Submit(1, (), frozenset({"a"}))
    assert request.on_tokens(1, 0, 0, (1, 2, 3), now=1.0) == ((3,), ())
    assert request.on_tokens(1, 1, 0, (5,), now=1.0) == ((), ())


def test_attempts_run_out_and_say_so():
    request = a_request()
    request.on_failure(0, Failure.LOST, now=0.0)
    request.on_failure(1, Failure.LOST, now=0.0)
    assert request.on_failure(2, Failure.REFUSED, now=0.0) == (GiveUp("attempts", Failure.REFUSED),)
    assert request.has_ended


def test_a_spent_budget_and_a_passed_deadline_say_so():
    poor = a_request(burst_retries=1.0, min_retries_per_s=0.0)
    poor.on_failure(0, Failure.LOST, now=0.0)
    assert poor.on_failure(1, Failure.LOST, now=0.0) == (GiveUp("budget", Failure.LOST),)
    late = a_request()
    assert late.on_failure(0, Failure.LOST, now=100.0)[-1] == GiveUp("deadline", Failure.LOST)


def test_an_orphan_is_told_to_end_until_it_has_or_its_lease_is_over():
    request = a_request()
    request.on_failure(0, Failure.HUNG, now=0.0)
    assert request.due(0.5) == ()
    assert request.due(1.0) == (CancelAttempt(0, "a"),)
    assert request.due(1.5) == ()
    request.on_attempt_gone(0)
    assert request.due(3.0) == ()
    request.on_sent(1, "b")
    request.on_failure(1, Failure.HUNG, now=3.0)
    assert request.due(13.0) == ()
    assert request.num_orphans == 0


def test_the_end_of_a_replica_ends_its_orphans():
    request = a_request()
    request.on_failure(0, Failure.LOST, now=0.0)
    request.on_replica_gone("a")
    assert request.num_orphans == 0


def test_a_client_that_left_cancels_and_is_never_served_again():
    request = a_request()
    assert request.on_client_gone(1.0) == (CancelAttempt(0, "a"),)
    assert request.on_failure(0, Failure.LOST, now=1.0) == ()
    assert request.on_tokens(0, 0, 0, (1,), now=1.0) == ((), ())


def test_a_drained_replica_costs_no_retry():
    request = a_request(max_attempts=1)
    request.on_tokens(0, 0, 0, (4,), now=0.0)
    assert request.on_migrate(0.0)[-1] == Submit(1, (4,), frozenset({"a"}))
    request.on_sent(1, "b")
    assert request.on_failure(1, Failure.LOST, now=0.0)[-1] == GiveUp("attempts", Failure.LOST)


ANSWER = tuple(range(100, 130))
events = st.lists(
    st.tuples(
        st.sampled_from(["tokens", "fail", "migrate", "end"]),
        st.integers(0, 4),
        st.integers(0, 30),
        st.integers(0, 6),
    ),
    max_size=60,
)


@given(events)
def test_the_client_gets_the_answer_in_order_and_once_whatever_happens(
    steps: list[tuple[str, int, int, int]],
):
    request = a_request(max_attempts=5)
    shown: list[int] = []
    for now, (step, attempt, index, length) in enumerate(steps):
        if step == "tokens":
            part = ANSWER[index : index + length]
            fresh, commands = request.on_tokens(attempt, 0, index, part, float(now))
            assert not fresh or attempt == request.attempt
            shown += fresh
        elif step == "fail":
            commands = request.on_failure(attempt, Failure.LOST, float(now))
        elif step == "migrate":
            commands = request.on_migrate(float(now))
        else:
            commands = ()
            request.on_choice_end(attempt, 0)
        for command in commands:
            if isinstance(command, Submit):
                assert command.emitted_token_ids == tuple(shown)
                request.on_sent(command.attempt, f"r{command.attempt}")
        assert tuple(shown) == ANSWER[: len(shown)] == request.accepted()
