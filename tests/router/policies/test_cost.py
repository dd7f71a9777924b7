"""The cost policy: predictions from measured pace, the cheapest candidate, and refusals."""

import random
from dataclasses import replace

import pytest

from router.pace import Pace
from router.policies.cost import Cost
from router.prediction import predicted_tpot_s, predicted_ttft_s
from router.replica_status import ReplicaState, ReplicaStatus
from router.routing_policy import Candidate, Choice, RoutingRequest, Unmeetable

PACE = Pace(decode_base_s=0.02, decode_row_s=0.001, prefill_token_s=0.001, mean_output_tokens=100.0)
REQUEST = RoutingRequest("r", 1000, 200, block_hashes=tuple(bytes([n]) * 32 for n in range(62)))


def a_candidate(name: str = "a", pace: Pace = PACE, **fields: object) -> Candidate:
    status = ReplicaStatus(
        name,
        **{
            "state": ReplicaState.ACTIVE,
            "block_size": 16,
            "max_num_seqs": 64,
            "num_blocks": 1000,
            "num_free_blocks": 1000,
            **fields,
        },
    )
    return Candidate(status, reserved_tokens=0, pace=pace)


def ttft_s(candidate: Candidate, *, hit: int = 0, fetch: int = 0) -> float:
    return predicted_ttft_s(candidate, REQUEST, num_hit_blocks=hit, num_fetch_blocks=fetch)


def chosen(
    *candidates: Candidate, hits: dict[str, int] | None = None, **slo: float
) -> Choice | Unmeetable:
    return Cost(random.Random(0)).choose(replace(REQUEST, **slo), candidates, hits or {})


def name_of(choice: Choice | Unmeetable) -> str:
    assert isinstance(choice, Choice)
    return choice.candidate.status.replica_id


def test_an_idle_replica_needs_its_prefill_and_a_step():
    assert ttft_s(a_candidate()) == pytest.approx(1.02)


def test_prompts_in_the_line_and_the_rest_of_those_that_run_come_first():
    busy = a_candidate(num_waiting_tokens=300, num_prompt_tokens_left=700, num_running=2)
    assert ttft_s(busy) == pytest.approx(2.02)


def test_hits_are_not_computed_again_but_the_last_token_is():
    assert ttft_s(a_candidate(), hit=50) == pytest.approx(0.22)
    assert ttft_s(a_candidate(), hit=63) == pytest.approx(0.021)


def test_a_fetch_is_counted_when_it_is_cheaper_than_computing():
    quick = a_candidate(fetch_token_s=0.0001)
    assert ttft_s(quick, hit=10, fetch=40) == pytest.approx(0.02 + 0.064 + 0.2)
    slow = a_candidate(fetch_token_s=0.01)
    assert ttft_s(slow, hit=10, fetch=40) == ttft_s(slow, hit=10)


def test_prompts_in_the_line_and_on_the_way_come_first():
    waiting = a_candidate(num_waiting_tokens=500)
    assert ttft_s(waiting) == pytest.approx(1.52)
    assert ttft_s(replace(waiting, reserved_prompt_tokens=250)) == pytest.approx(1.77)


def test_a_replica_without_a_free_place_or_free_blocks_makes_wait():
    full = a_candidate(num_running=64)
    assert ttft_s(full) == pytest.approx(1.02 + (1 / 64) * 100 * 0.084)
    crowded = a_candidate(num_free_blocks=20)
    assert ttft_s(crowded) > 1.02


def test_every_row_and_every_prefill_stretches_the_time_per_token():
    assert predicted_tpot_s(a_candidate(num_running=9)) == pytest.approx(0.03)
    busy = a_candidate(pace=replace(PACE, prefill_share=0.5), num_running=9)
    assert predicted_tpot_s(busy) == pytest.approx(0.06)


def test_the_candidate_that_ends_first_is_taken():
    long_line = a_candidate("a", num_waiting_tokens=3000)
    assert name_of(chosen(long_line, a_candidate("b"))) == "b"
    assert name_of(chosen(long_line, a_candidate("b"), hits={"a": 62})) == "b"
    short_line = a_candidate("a", num_waiting_tokens=500)
    assert name_of(chosen(short_line, a_candidate("b"), hits={"a": 62})) == "a"


def test_a_slow_replica_is_taken_only_when_the_quick_one_is_busy():
    slow = a_candidate("slow", pace=Pace(0.08, 0.004, 0.004, 0.0, 100.0))
    assert name_of(chosen(slow, a_candidate("quick"))) == "quick"
    busy = a_candidate("quick", num_waiting_tokens=20_000)
    assert name_of(chosen(slow, busy)) == "slow"


def test_a_stated_latency_leaves_out_those_that_would_miss_it():
    cheap_but_late = a_candidate("a", num_waiting_tokens=1000, num_running=1)
    quick_but_slow = a_candidate("b", num_running=60)
    assert name_of(chosen(cheap_but_late, quick_but_slow)) == "a"
    assert name_of(chosen(cheap_but_late, quick_but_slow, max_ttft_s=1.5)) == "b"


def test_nobody_in_time_is_a_refusal_that_says_what_was_predicted():
    answer = chosen(
        a_candidate("a", num_waiting_tokens=9000),
        a_candidate("b", num_waiting_tokens=4000),
        max_ttft_s=2.0,
    )
    assert isinstance(answer, Unmeetable)
    assert answer.reason == "ttft"
    assert answer.predicted_ttft_s == pytest.approx(5.02)
    assert answer.retry_after_s == pytest.approx(3.02)


def test_a_time_per_token_that_nobody_keeps_is_a_refusal_too():
    answer = chosen(a_candidate(num_running=60), max_ttft_s=5.0, max_tpot_s=0.03)
    assert isinstance(answer, Unmeetable)
    assert answer.reason == "tpot"


def test_without_any_measure_the_lightest_is_taken_and_nothing_refused():
    unknown = Pace()
    choice = chosen(
        a_candidate("a", pace=unknown, outstanding_tokens=9),
        a_candidate("b", pace=unknown, outstanding_tokens=3),
        max_ttft_s=0.001,
    )
    assert name_of(choice) == "b"
    assert isinstance(choice, Choice)
    assert choice.reason == "cost_unmeasured"
