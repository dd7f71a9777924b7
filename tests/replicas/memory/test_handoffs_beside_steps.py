"""A hand-off does not wait for a step that computes something else, however long that takes."""

import pytest

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
from tests.replicas.memory.stores import CHUNK


@pytest.fixture
def pools():
    made = Pools()
    yield made
    made.close()


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
