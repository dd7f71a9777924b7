"""The router as a gateway uses it: choices, reservations, and what is counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config import RouterConfig
from router.policies import policy_named
from router.policies.least_loaded import LeastLoaded
from router.policies.round_robin import RoundRobin
from router.replica_status import ReplicaState, ReplicaStatus
from router.request_router import RequestRouter
from router.routing_policy import RoutingRequest


def a_request(work_tokens: int = 100, request_id: str = "r") -> RoutingRequest:
    return RoutingRequest(request_id, prompt_tokens=work_tokens - 1, max_output_tokens=1)


def a_router(
    *replica_ids: str, policy: LeastLoaded | RoundRobin | None = None, **fields: object
) -> RequestRouter:
    router = RequestRouter(policy or LeastLoaded())
    for replica_id in replica_ids:
        router.update(ReplicaStatus(replica_id, state=ReplicaState.ACTIVE, **fields))
    return router


def chosen(router: RequestRouter, request: RoutingRequest, **options: frozenset[str]) -> str:
    reservation = router.choose(request, **options)
    assert reservation is not None
    return reservation.replica_id


def test_no_replica_means_no_choice_and_is_counted():
    router = a_router()
    assert router.choose(a_request()) is None
    assert router.decisions == {"no_replica": 1}


def test_a_burst_spreads_although_no_status_arrives_between():
    router = a_router("a", "b", "c")
    taken = [chosen(router, a_request()) for _ in range(9)]
    assert {replica: taken.count(replica) for replica in "abc"} == {"a": 3, "b": 3, "c": 3}


def test_one_long_request_weighs_as_much_as_many_short_ones():
    router = a_router("a", "b")
    long_one = chosen(router, a_request(1000))
    short_ones = {chosen(router, a_request(100)) for _ in range(9)}
    assert short_ones == {"a", "b"} - {long_one}


def test_the_lightest_by_its_own_figure_takes_the_request():
    router = a_router("a", "b", outstanding_tokens=500)
    router.update(ReplicaStatus("b", state=ReplicaState.ACTIVE, outstanding_tokens=10))
    assert [chosen(router, a_request(10)) for _ in range(3)] == ["b", "b", "b"]


def test_an_admitted_request_is_no_longer_counted_twice():
    router = a_router("a")
    reservation = router.choose(a_request(100))
    assert reservation is not None
    assert router.reserved_tokens("a") == 100
    router.settle(reservation)
    router.release(reservation)
    assert router.reserved_tokens("a") == 0
    router.check()


def test_round_robin_takes_turns_whatever_the_load():
    router = a_router("a", "b", policy=RoundRobin())
    assert [chosen(router, a_request(n)) for n in (1000, 2, 1000, 2)] == ["a", "b", "a", "b"]


def test_replicas_that_refused_are_not_asked_again():
    router = a_router("a", "b")
    assert chosen(router, a_request(), exclude=frozenset({"a"})) == "b"
    assert router.choose(a_request(), exclude=frozenset({"a", "b"})) is None
    assert router.decisions == {"only_candidate": 1, "all_excluded": 1}


@pytest.mark.parametrize("state", [ReplicaState.STARTING, ReplicaState.DRAINING, ReplicaState.GONE])
def test_replicas_that_start_drain_or_are_gone_take_nothing(state: ReplicaState):
    router = a_router("a")
    router.update(ReplicaStatus("a", state=state))
    assert router.choose(a_request()) is None


def test_a_suspect_is_chosen_only_when_nobody_else_can_be():
    router = a_router("a", "b")
    router.update(ReplicaStatus("a", state=ReplicaState.SUSPECT))
    assert {chosen(router, a_request()) for _ in range(4)} == {"b"}
    router.update(ReplicaStatus("b", state=ReplicaState.GONE))
    assert chosen(router, a_request()) == "a"
    assert router.decisions["only_suspect"] == 1


def test_reservations_end_with_their_replica():
    router = a_router("a", "b")
    for _ in range(4):
        router.choose(a_request())
    router.forget("a")
    router.check()
    assert router.reserved_tokens("a") == 0
    assert set(router.statuses) == {"b"}


def test_decisions_name_the_policy_that_decided():
    router = a_router("a", "b")
    router.choose(a_request())
    assert router.decisions == {"least_loaded": 1}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["choose", "settle", "release", "forget", "update"]),
            st.integers(0, 3),
            st.integers(2, 50),
        ),
        max_size=80,
    )
)
def test_reserved_work_always_adds_up(operations: list[tuple[str, int, int]]):
    router = a_router("r0", "r1", "r2", "r3")
    held = []
    for operation, number, tokens in operations:
        replica_id = f"r{number}"
        if operation == "choose":
            reservation = router.choose(a_request(tokens))
            if reservation is not None:
                held.append(reservation)
        elif operation == "forget":
            router.forget(replica_id)
        elif operation == "update":
            router.update(ReplicaStatus(replica_id, state=ReplicaState.ACTIVE))
        elif held:
            end = router.settle if operation == "settle" else router.release
            end(held.pop(number % len(held)))
        router.check()


def test_policies_are_found_by_the_name_of_the_setting():
    assert isinstance(policy_named(RouterConfig().policy), LeastLoaded)
    assert isinstance(policy_named("round_robin"), RoundRobin)


@pytest.mark.parametrize(
    "bad",
    [
        {"policy": "best"},
        {"max_tries": 0},
        {"accept_timeout_s": 0.0},
        {"heartbeat_interval_s": float("nan")},
        {"suspect_after_missed": 0},
    ],
)
def test_a_bad_setting_names_itself(bad: dict[str, object]):
    name = next(iter(bad))
    with pytest.raises(ValueError, match=name):
        RouterConfig(**bad)
