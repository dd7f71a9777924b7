"""When an engine says that things happened to a choice."""

import pytest

from tests.replicas.engine_harness import (
    ManualClock,
    engine,
    entries,
    prompt,
    request,
    run,
    submit,
)


def timelines(outputs, request_id="a"):
    return [e.timeline for e in entries(outputs) if e.request_id == request_id]


@pytest.mark.parametrize("emitted", [(), (3, 4)])
def test_a_timeline_comes_with_the_first_token_and_with_the_end(emitted):
    target = engine()
    submit(target, request("a", prompt(6), max_tokens=6, emitted=emitted))
    known = [e.timeline is not None for e in entries(run(target)) if e.token_ids]
    assert known == [True, *[False] * (len(known) - 2), True]


def test_it_tells_when_a_request_came_in_and_when_a_step_took_it_up():
    clock = ManualClock()
    target = engine(clock=clock)
    clock.now = 10.0
    submit(target, request("a", prompt(6), max_tokens=1))
    clock.now = 10.5
    timeline = timelines(run(target))[-1]
    assert (timeline.received_at, timeline.arrived_at, timeline.scheduled_at) == (10.0, 10.5, 10.5)


def test_it_counts_the_preemptions_of_its_choice():
    target = engine(num_blocks=8, watermark=0.0)
    submit(target, *(request(name, prompt(6), max_tokens=24) for name in "ab"))
    outputs = run(target)
    counts = [timelines(outputs, name)[-1].num_preemptions for name in "ab"]
    assert sum(counts) == outputs[-1].stats.preemptions_total > 0
