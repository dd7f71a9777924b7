"""A hand-off does not wait for a step that computes something else, however long that takes."""

import threading

import pytest

from replicas.simulated_runner import SimulatedRunner
from tests.replicas.engine_harness import prompt, submit
from tests.replicas.memory.pools import (
    Pools,
    ask,
    decode,
    entries_until,
    expected,
    has_ended,
    has_news,
    inward,
    news_of,
    outward,
    prefill,
    rest,
    tokens_of,
)

CHUNK = 32


@pytest.fixture
def pools():
    made = Pools()
    yield made
    made.close()


@pytest.fixture
def gate(monkeypatch):
    """Shut: a step over a whole chunk of prompt does not end before it is opened."""
    opened = threading.Event()
    compute = SimulatedRunner.run

    def run(self, batch, nearly_done):
        if batch.num_tokens == CHUNK:
            assert opened.wait(5.0), "whatever the test waited for waited for this step"
        return compute(self, batch, nearly_done)

    monkeypatch.setattr(SimulatedRunner, "run", run)
    yield opened
    opened.set()


def is_published(entry):
    return has_news(entry) and entry.handoff.outcome == "published"


def test_a_prompt_is_handed_over_while_another_is_computed(pools, gate):
    one, long = ask("a"), ask("b", prompt(3 * CHUNK, seed=1))
    engine = pools.start(async_scheduling=True)
    submit(engine, outward(one))
    engine.step()
    submit(engine, long)
    computed = entries_until(engine, is_published)
    gate.set()
    assert tokens_of(computed) == expected(one)[:1]
    generated = decode(pools.start(), one, tokens_of(computed))
    assert [*tokens_of(computed), *tokens_of(generated)] == expected(one)


def test_blocks_are_adopted_while_a_step_is_computed(pools, gate):
    one, long = ask("a"), ask("b", prompt(3 * CHUNK, seed=1))
    first = tokens_of(prefill(pools.start(), one))
    engine = pools.start(async_scheduling=True)
    submit(engine, long)
    engine.step()
    submit(engine, inward(one, first))
    news = news_of(entries_until(engine, has_news))
    gate.set()
    assert news.outcome == "adopted"
    generated = entries_until(engine, lambda entry: has_ended(entry) and entry.request_id == "a")
    assert [*first, *(t for e in generated if e.request_id == "a" for t in e.token_ids)] == (
        expected(one)
    )
    rest(engine)
