"""A session stays where it is, moves only when it must, and cannot bury a replica."""

import random
from collections import Counter

from router.policies.session import Session
from tests.router.policies.candidates import a_request, candidates_of

SESSIONS = [f"session-{number}" for number in range(400)]


def owner(session: str, *, seed: int = 0, **loads: int) -> str:
    policy = Session(random.Random(seed), load_slack=0.25)
    choice = policy.choose(a_request(session=session), candidates_of(**loads), {})
    return choice.candidate.status.replica_id


def test_all_gateways_agree_on_a_sessions_replica():
    for session in SESSIONS[:50]:
        owners = {owner(session, seed=seed, a=0, b=0, c=0, d=0) for seed in range(3)}
        assert len(owners) == 1


def test_sessions_spread_over_the_replicas():
    counts = Counter(owner(session, a=0, b=0, c=0, d=0) for session in SESSIONS)
    assert min(counts.values()) > 60


def test_a_lost_replica_moves_only_its_own_sessions():
    for session in SESSIONS:
        before = owner(session, a=0, b=0, c=0, d=0)
        after = owner(session, a=0, b=0, d=0)
        assert before in (after, "c")


def test_a_new_replica_only_takes_sessions():
    moved = 0
    for session in SESSIONS:
        before, after = owner(session, a=0, b=0, c=0), owner(session, a=0, b=0, c=0, d=0)
        assert after in (before, "d")
        moved += after == "d"
    assert 60 < moved < 140


def test_an_overloaded_replica_passes_a_session_on_and_gets_it_back():
    (session,) = [s for s in SESSIONS if owner(s, a=0, b=0, c=0) == "a"][:1]
    policy = Session(random.Random(0), load_slack=0.25)
    choice = policy.choose(a_request(session=session), candidates_of(a=900, b=50, c=50), {})
    assert choice.reason == "session_overflow"
    assert choice.candidate.status.replica_id != "a"
    assert owner(session, a=100, b=50, c=50) == "a"


def test_many_requests_of_few_sessions_stay_within_the_bound():
    policy = Session(random.Random(0), load_slack=0.25)
    loads = dict.fromkeys("abcdefgh", 0)
    for number in range(400):
        request = a_request(100, session=SESSIONS[number % 3])
        chosen = policy.choose(request, candidates_of(**loads), {}).candidate.status.replica_id
        loads[chosen] += 100
    mean = sum(loads.values()) / len(loads)
    assert max(loads.values()) <= 1.25 * mean + 2 * 100


def test_a_request_without_a_session_goes_to_the_lightest():
    policy = Session(random.Random(0), load_slack=0.25)
    choice = policy.choose(a_request(), candidates_of(a=5, b=4), {})
    assert (choice.candidate.status.replica_id, choice.reason) == ("b", "session_none")
