"""What the small model is asked for, and when."""

import pytest

from replicas.request_state import RequestState
from replicas.speculation.model_drafter import (
    MAX_TOKENS_A_STEP,
    TRY_AGAIN_AFTER_TOKENS,
    ModelDrafter,
)
from tests.replicas.engine_harness import BLOCK_SIZE, ManualClock, request


class SmallModel:
    """Says 7 whatever it is asked, and keeps what it was asked."""

    def __init__(self, clock=None, pass_s=0.0):
        self.clock = clock or ManualClock()
        self.pass_s = pass_s
        self.batches = []

    def __call__(self, batch):
        self.batches.append(batch)
        self.clock.advance(self.pass_s * max(1, *batch.depths))
        return [[7] * max(1, *batch.depths) for _ in batch.depths]

    def rows(self, index=-1):
        """(positions, depth) of each row of a batch."""
        first = self.batches[index].first
        starts = first.query_start.tolist()
        return [
            (first.positions[start:stop].tolist(), depth)
            for start, stop, depth in zip(
                starts, starts[1:], self.batches[index].depths, strict=False
            )
        ]


def drafter_of(model):
    return ModelDrafter(model, block_size=BLOCK_SIZE, clock=model.clock)


def state_of(tokens, *, first_block=0):
    state = RequestState(
        request("r", tokens, max_tokens=1000), choice=0, arrived_at=0.0, max_model_len=100_000
    )
    state.blocks = list(range(first_block, first_block + len(state.tokens) // BLOCK_SIZE + 5))
    return state


def test_it_catches_up_with_the_prompt_and_then_sees_what_is_new():
    model = SmallModel()
    drafter, state = drafter_of(model), state_of([1] * 10)
    assert drafter.draft({state: 3}) == {state: (7, 7, 7)}
    assert model.rows() == [(list(range(10)), 3)]
    drafter.note_verified(state, 3, 1)
    state.tokens.extend([7, 5])
    drafter.draft({state: 3})
    assert model.rows() == [([11], 3)]


def test_the_last_of_its_own_guesses_is_new_to_it_too():
    model = SmallModel()
    drafter, state = drafter_of(model), state_of([1] * 10)
    drafter.draft({state: 3})
    drafter.note_verified(state, 3, 3)
    state.tokens.extend([7, 7, 7, 5])
    drafter.draft({state: 3})
    assert model.rows() == [([12, 13], 3)]


def test_a_long_prompt_is_caught_up_with_in_portions_and_without_guesses():
    model = SmallModel()
    drafter, state = drafter_of(model), state_of([1] * (2 * MAX_TOKENS_A_STEP + 3))
    found = [drafter.draft({state: 2}) for _ in range(3)]
    assert found == [{}, {}, {state: (7, 7)}]
    assert [len(model.rows(index)[0][0]) for index in range(3)] == [512, 512, 3]


def test_whoever_got_other_blocks_is_seen_anew():
    model = SmallModel()
    drafter, state = drafter_of(model), state_of([1] * 10)
    drafter.draft({state: 2})
    state.blocks[1] = 99
    drafter.draft({state: 2})
    assert model.rows() == [(list(range(10)), 2)]
    state.tokens.append(3)
    state.num_preemptions += 1
    drafter.draft({state: 2})
    assert model.rows() == [(list(range(11)), 2)]


def test_guesses_that_fail_are_trusted_less_and_tried_again_much_later():
    drafter, state = drafter_of(SmallModel()), state_of([1] * 10)
    fresh = drafter.chances(state, 2)
    for _ in range(10):
        drafter.note_verified(state, 2, 0)
        state.tokens.append(1)
    assert drafter.chances(state, 1)[0] < 0.2 < fresh[0]
    state.tokens.extend([1] * TRY_AGAIN_AFTER_TOKENS)
    assert drafter.chances(state, 2) == fresh


def test_guesses_that_hold_are_trusted():
    drafter, state = drafter_of(SmallModel()), state_of([1] * 10)
    for _ in range(40):
        drafter.note_verified(state, 3, 3)
    assert drafter.chances(state, 3)[2] > 0.8


def test_what_a_pass_takes_is_measured_and_catching_up_is_none():
    drafter = drafter_of(SmallModel(pass_s=0.002))
    drafter.draft({state_of([1] * 40): 4})
    assert drafter.pass_s == 0.0
    for _ in range(30):
        drafter.draft({state_of([1, 2, 3]): 4})
    assert drafter.pass_s == pytest.approx(0.002)
