"""The router as a gateway uses it: choices, reservations, and what is counted."""

import random
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config import PolicyName, RouterConfig
from router.pace import StepSample
from router.policies import policy_of
from router.policies.least_loaded import LeastLoaded
from router.policies.round_robin import RoundRobin
from router.prefixes.kv_events import KvBatch, KvBlocks
from router.prefixes.prefix_index import PrefixIndex
from router.replica_status import EVERY_ROLE, GatewayAdmission, ReplicaState, ReplicaStatus
from router.request_router import RequestRouter, Reservation, RoutedBlocks
from router.routing_policy import RoutingPolicy, RoutingRequest, Unmeetable


def a_request(work_tokens: int = 100, request_id: str = "r") -> RoutingRequest:
    return RoutingRequest(request_id, prompt_tokens=work_tokens - 1, max_output_tokens=1)


def a_router(
    *replica_ids: str, policy: RoutingPolicy | None = None, **fields: object
) -> RequestRouter:
    router = RequestRouter(policy or LeastLoaded(random.Random(0)))
    for replica_id in replica_ids:
        router.update(ReplicaStatus(replica_id, state=ReplicaState.ACTIVE, **fields))
    return router


def chosen(router: RequestRouter, request: RoutingRequest, **options: frozenset[str]) -> str:
    reservation = router.choose(request, **options)
    assert isinstance(reservation, Reservation)
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
    assert isinstance(reservation, Reservation)
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


def test_a_request_stays_within_the_roles_that_it_names():
    router = a_router("d", role="decode")
    router.update(ReplicaStatus("p", role="prefill", state=ReplicaState.ACTIVE))
    router.update(ReplicaStatus("m", role="mixed", state=ReplicaState.ACTIVE))
    assert {
        chosen(router, a_request(), roles=frozenset({"prefill", "mixed"})) for _ in range(6)
    } == {"p", "m"}
    assert chosen(router, a_request(), roles=frozenset({"decode"})) == "d"
    only_prefill = frozenset({"prefill"})
    assert not router.has_candidate(exclude=frozenset({"p"}), roles=only_prefill)


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


def test_a_look_reserves_nothing_counts_nothing_and_takes_no_turn():
    router = a_router("a", "b", policy=RoundRobin())
    for replica_id in ("a", "b", "a"):
        looks = [look(router) for _ in range(3)]
        assert looks == [looks[0]] * 3
        assert chosen(router, a_request(10)) == replica_id
    assert router.decisions == {"round_robin": 3}
    router.check()


def test_prompts_that_a_replica_has_begun_stand_before_the_next_one():
    router = a_router("p", role="prefill", num_waiting_tokens=300, num_prompt_tokens_left=600)
    side = look(router)
    assert side is not None
    assert side.queued_prefill_tokens == 900
    router.choose(a_request(101))
    assert look(router).queued_prefill_tokens == 1000


def test_a_look_finds_nobody_where_a_choice_would_not():
    assert look(a_router()) is None


def look(router: RequestRouter):
    return router.look(a_request(), exclude=frozenset(), roles=EVERY_ROLE)


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
            if isinstance(reservation, Reservation):
                held.append(reservation)
        elif operation == "forget":
            router.forget(replica_id)
        elif operation == "update":
            router.update(ReplicaStatus(replica_id, state=ReplicaState.ACTIVE))
        elif held:
            end = router.settle if operation == "settle" else router.release
            end(held.pop(number % len(held)))
        router.check()


@pytest.mark.parametrize("name", get_args(PolicyName))
def test_every_policy_of_the_setting_chooses(name: PolicyName):
    policy = policy_of(RouterConfig(policy=name), random.Random(0))
    router = RequestRouter(policy, index=PrefixIndex(max_blocks=10))
    for replica_id in "ab":
        router.update(ReplicaStatus(replica_id, state=ReplicaState.ACTIVE))
    assert chosen(router, a_request()) in ("a", "b")
    (reason,) = router.decisions
    assert reason.startswith(name.split("_")[0])


NAMES = tuple(bytes([n]) * 32 for n in range(8))


def a_router_with_prefixes(**blocks: int) -> RequestRouter:
    index = PrefixIndex(max_blocks=100)
    for replica_id, count in blocks.items():
        index.apply(replica_id, KvBatch(1, 0, (KvBlocks("stored", NAMES[:count]),)))
    policy = policy_of(RouterConfig(policy="prefix_affinity"), random.Random(0))
    router = RequestRouter(policy, index=index)
    for replica_id in ("a", "b", "c"):
        router.update(ReplicaStatus(replica_id, state=ReplicaState.ACTIVE))
    return router


def test_a_policy_that_looks_at_prefixes_is_told_each_replicas_hits():
    router = a_router_with_prefixes(a=2, b=7)
    reservation = router.choose(RoutingRequest("r", 128, 16, block_hashes=NAMES))
    assert isinstance(reservation, Reservation)
    assert (reservation.replica_id, reservation.num_hit_blocks) == ("b", 7)
    assert router.routed_blocks == RoutedBlocks(num_prompt=8, num_hit=7)
    assert router.decisions == {"prefix_hit": 1}


def test_one_hot_prefix_does_not_bury_its_holder():
    router = a_router_with_prefixes(b=8)
    request = RoutingRequest("r", 128, 16, block_hashes=NAMES)
    taken = [chosen(router, request) for _ in range(30)]
    assert max(taken.count(replica) for replica in "abc") <= 18
    assert taken.count("b") == max(taken.count(replica) for replica in "abc")


def test_prompt_tokens_sent_meanwhile_stand_before_the_next_request():
    status = ReplicaStatus(
        "a", state=ReplicaState.ACTIVE, last_step=StepSample(2, 100, 0, 1.0), max_num_seqs=8
    )
    router = RequestRouter(
        policy_of(RouterConfig(policy="cost"), random.Random(0)), index=PrefixIndex(max_blocks=9)
    )
    router.update(replace(status, last_step=StepSample(1, 0, 4, 0.1)))
    router.update(status)
    request = RoutingRequest("r", 100, 16, max_ttft_s=2.5)
    assert router.paces["a"].prefill_token_s == pytest.approx(0.01)
    assert isinstance(router.choose(request), Reservation)
    assert isinstance(router.choose(request), Reservation)
    refused = router.choose(request)
    assert isinstance(refused, Unmeetable)
    assert refused.reason == "ttft"
    assert refused.predicted_ttft_s == pytest.approx(3.1)
    assert router.decisions["unmeetable_ttft"] == 1
    router.check()


def herd(*, num_gateways: int, tells_admissions: bool) -> float:
    """How far above the mean the fullest of 8 replicas gets when gateways see old figures.

    Each round every gateway sends one request; only then does every replica say how it stands.
    """
    routers = [
        RequestRouter(LeastLoaded(random.Random(number)), gateway_id=f"g{number}")
        for number in range(num_gateways)
    ]
    admitted = {f"r{n}": dict.fromkeys((f"g{g}" for g in range(num_gateways)), 0) for n in range(8)}
    loads = {f"r{n}": 100 * n for n in range(8)}
    worst = 0.0
    for _ in range(60):
        for replica_id, load in loads.items():
            told = tuple(GatewayAdmission(*pair) for pair in admitted[replica_id].items())
            status = ReplicaStatus(
                replica_id,
                state=ReplicaState.ACTIVE,
                outstanding_tokens=load,
                admissions=told if tells_admissions else (),
            )
            for router in routers:
                router.update(status)
        for number, router in enumerate(routers):
            reservation = router.choose(a_request(200))
            assert isinstance(reservation, Reservation)
            loads[reservation.replica_id] += 200
            admitted[reservation.replica_id][f"g{number}"] += 200
            router.settle(reservation)
        # What was sent is computed meanwhile, by all replicas alike.
        loads = {name: max(0, load - 25 * num_gateways) for name, load in loads.items()}
        worst += max(loads.values()) - sum(loads.values()) / len(loads)
    return worst / 60


def test_gateways_that_see_what_others_had_admitted_do_not_herd():
    assert herd(num_gateways=8, tells_admissions=True) < 0.7 * herd(
        num_gateways=8, tells_admissions=False
    )


def test_a_gateway_alone_takes_the_very_lightest_whatever_is_admitted_of_itself():
    router = RequestRouter(LeastLoaded(random.Random(0)), gateway_id="me")
    for turn in range(50):
        for replica_id, load in (("a", 10), ("b", 11)):
            admissions = (GatewayAdmission("me", 1000 * turn),)
            router.update(
                ReplicaStatus(
                    replica_id,
                    state=ReplicaState.ACTIVE,
                    outstanding_tokens=load,
                    admissions=admissions,
                )
            )
        reservation = router.choose(a_request())
        assert isinstance(reservation, Reservation)
        assert reservation.replica_id == "a"
        router.settle(reservation)


@pytest.mark.parametrize(
    "bad",
    [
        {"policy": "best"},
        {"prefix_load_weight": -0.1},
        {"session_load_slack": float("nan")},
        {"ttft_slo_s": -1.0},
        {"max_index_blocks": 0},
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
