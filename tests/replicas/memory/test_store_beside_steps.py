"""What the store has of a new request is asked for and fetched while a step is computed."""

import time

import pytest

from kvstore.memory_store import Memory
from tests.replicas.engine_harness import alone, entries, prompt, request, run, submit
from tests.replicas.memory.stores import (
    CHUNK,
    PATIENCE_S,
    Engines,
    serve,
    shared_memory_store,
)


@pytest.fixture
def engines():
    memory = Memory(max_bytes=1 << 20, clock=time.monotonic)
    made = Engines(lambda: shared_memory_store(memory))
    yield made
    made.close()


def test_a_request_that_came_during_a_step_is_in_the_next_one_with_what_the_store_has(
    engines, gate
):
    one = request("a", prompt(26), max_tokens=6)
    first = engines.start()
    serve(first, one)
    first.close()
    engine = engines.start(async_scheduling=True)
    submit(engine, request("b", prompt(CHUNK, seed=1), max_tokens=2))
    while engine.is_waiting:
        engine.step()
        engine.inbox.wait(0.01)
    submit(engine, one)
    # The question, then the fetch; each call returns while the step of "b" is computed.
    assert engine.step() is None
    assert engine.inbox.wait(PATIENCE_S), "the store did not answer"
    assert engine.step() is None
    assert engine.inbox.wait(PATIENCE_S), "nothing was fetched"
    opened_at = time.monotonic()
    gate.set()
    ours = [entry for entry in entries(run(engine)) if entry.request_id == "a"]
    assert [token for entry in ours for token in entry.token_ids] == alone(one)["a", 0]
    assert engine.stats.tiers.store_hit_tokens_total == 24
    timeline = ours[-1].timeline
    assert timeline.received_at < opened_at
    # It was there at the boundary after that step, and did not wait for another one.
    assert timeline.arrived_at == timeline.scheduled_at > opened_at
    engine.close()
