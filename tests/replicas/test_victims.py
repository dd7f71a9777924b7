"""Who gives way: whoever loses least, the newest among equals, nobody too often."""

from replicas.request_state import RequestState
from replicas.victims import choose_victim, lost_tokens
from tests.replicas.engine_harness import request


def running(name, *, blocks, planned, preemptions=0):
    state = RequestState(request(name, range(8)), choice=0, arrived_at=0.0, max_model_len=64)
    state.blocks = blocks
    state.num_planned = planned
    state.num_preemptions = preemptions
    return state


def choose(*states, shared=(), max_preemptions=3):
    return choose_victim(
        states,
        block_size=4,
        is_shared=lambda block: block in shared,
        max_preemptions=max_preemptions,
    )


def test_the_request_with_the_fewest_computed_tokens_gives_way():
    small = running("small", blocks=[0], planned=3)
    large = running("large", blocks=[1, 2], planned=8)
    assert choose(small, large) is small


def test_tokens_in_shared_blocks_are_not_lost():
    long_but_shared = running("shared", blocks=[0, 1, 2], planned=9)
    short = running("short", blocks=[3, 4], planned=5)
    assert lost_tokens(long_but_shared, 4, lambda block: block in (0, 1)) == 1
    assert choose(long_but_shared, short, shared=(0, 1)) is long_but_shared


def test_among_equals_the_newest_gives_way():
    older = running("older", blocks=[0], planned=3)
    newer = running("newer", blocks=[1], planned=3)
    assert choose(older, newer) is newer


def test_a_request_that_gave_way_often_enough_is_spared():
    tired = running("tired", blocks=[0], planned=1, preemptions=3)
    large = running("large", blocks=[1, 2], planned=8)
    assert choose(tired, large) is large


def test_somebody_gives_way_even_when_all_are_tired():
    states = [running(f"r{i}", blocks=[i], planned=3 + i, preemptions=3) for i in range(2)]
    assert choose(*states) is states[0]


def test_a_request_without_blocks_has_nothing_to_give():
    empty = running("empty", blocks=[], planned=0)
    full = running("full", blocks=[0], planned=3)
    assert choose(empty, full) is full
