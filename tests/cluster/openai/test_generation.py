"""A generation joins feeds in any interleaving, and closes every feed on every way out."""

import asyncio
import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.dispatch.scripted_dispatcher import Script, ScriptedDispatcher
from cluster.errors import NoReplica, ReplicaLost
from cluster.metrics.call_meter import CallOrigin
from cluster.metrics.gateway_metrics import GatewayMetrics
from cluster.openai.choice_text import TextRules
from cluster.openai.generation import Generation, GenerationPlan
from cluster.text.detokenizer import IncrementalDetokenizer
from replicas.request import EngineRequest, FinishReason, SamplingParams, TokenEntry


class ShuffledFeed:
    """Gives prepared entries in a prepared order of choices."""

    def __init__(self, entries):
        self._entries = entries
        self.finished = []
        self.is_closed = False

    async def __aiter__(self):
        for entry in self._entries:
            await asyncio.sleep(0)
            yield entry

    def finish_choice(self, choice):
        self.finished.append(choice)

    async def close(self):
        self.is_closed = True


class OneFeedDispatcher:
    def __init__(self, feed):
        self._feed = feed

    async def open(self, request):
        return self._feed


def request(num_choices=1, name="r"):
    return EngineRequest(name, (1, 2), SamplingParams(max_tokens=100), b"", num_choices=num_choices)


def generation(dispatcher, tokenizer, requests, rules=None, timeout_s=5.0):
    return Generation(
        GenerationPlan(tuple(requests), rules or TextRules()),
        dispatcher=dispatcher,
        new_detokenizer=lambda ids: IncrementalDetokenizer(tokenizer, prompt_token_ids=ids),
        admission_timeout_s=timeout_s,
        meter=GatewayMetrics().meter(requests, CallOrigin(arrived_at=0.0)),
    )


async def collect(running):
    texts = [""] * (len(running.plan.requests) * running.plan.num_per_prompt)
    ends = {}
    async with running:
        async for delta in running.deltas():
            assert delta.choice not in ends
            texts[delta.choice] += delta.text
            if delta.end is not None:
                ends[delta.choice] = delta.end
    return texts, ends


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.text(alphabet="ab#🏯", max_size=8), min_size=1, max_size=4), st.randoms())
def test_any_interleaving_gives_each_choice_its_text(tokenizer, texts, random):
    waiting = {choice: [*text.encode(), None] for choice, text in enumerate(texts)}
    entries, sent = [], dict.fromkeys(waiting, 0)
    while waiting:
        choice = random.choice(sorted(waiting))
        token_id = waiting[choice].pop(0)
        is_last = token_id is None
        entries.append(
            TokenEntry(
                "r",
                0,
                choice,
                sent[choice],
                () if is_last else (token_id,),
                FinishReason.STOP if is_last else None,
            )
        )
        sent[choice] += 1
        if is_last:
            del waiting[choice]
    feed = ShuffledFeed(entries)
    running = generation(OneFeedDispatcher(feed), tokenizer, [request(len(texts))])
    got, ends = asyncio.run(collect(running))
    assert got == texts
    assert len(ends) == len(texts)
    assert feed.is_closed


async def test_entries_after_a_stop_string_are_not_looked_at(tokenizer, says):
    dispatcher = ScriptedDispatcher(lambda request: says("ab#cd", "xyz"))
    running = generation(dispatcher, tokenizer, [request(2)], TextRules(("#",)))
    texts, _ = await collect(running)
    assert texts == ["ab", "xyz"]
    assert dispatcher.feeds[0].finished_choices == [0]
    assert dispatcher.num_open == 0


async def test_a_feed_that_ends_too_early_is_a_loss(tokenizer):
    feed = ShuffledFeed([TokenEntry("r", 0, 0, 0, (97,))])
    running = generation(OneFeedDispatcher(feed), tokenizer, [request()])
    with pytest.raises(ReplicaLost):
        await collect(running)
    assert feed.is_closed


async def test_a_loss_of_one_feed_of_many_closes_all(tokenizer, says):
    scripts = {"a": says("abc", step_s=9), "b": says("d", lost_after_tokens=0)}
    dispatcher = ScriptedDispatcher(lambda request: scripts[request.request_id])
    running = generation(dispatcher, tokenizer, [request(name="a"), request(name="b")])
    with pytest.raises(ReplicaLost):
        await collect(running)
    assert dispatcher.num_open == 0


async def test_a_late_admission_is_withdrawn(tokenizer):
    dispatcher = ScriptedDispatcher(lambda request: Script(admission_s=9))
    running = generation(dispatcher, tokenizer, [request()], timeout_s=0.05)
    with pytest.raises(NoReplica):
        await collect(running)
    assert dispatcher.num_open == 0


async def test_a_cancel_during_admission_withdraws_all(tokenizer, says):
    scripts = {"a": says("abc"), "b": Script(admission_s=9)}
    dispatcher = ScriptedDispatcher(lambda request: scripts[request.request_id])
    running = generation(dispatcher, tokenizer, [request(name="a"), request(name="b")])
    task = asyncio.create_task(collect(running))
    for _ in range(5):
        await asyncio.sleep(0)
    assert dispatcher.num_open == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert dispatcher.num_open == 0


async def test_a_cancel_in_the_middle_closes_all_and_leaves_no_task(tokenizer, says):
    dispatcher = ScriptedDispatcher(lambda request: says("abcdef", step_s=0.02))
    requests = [dataclasses.replace(request(), request_id=str(i)) for i in range(3)]
    task = asyncio.create_task(collect(generation(dispatcher, tokenizer, requests)))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert dispatcher.num_open == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_feed_that_fails_to_close_does_not_keep_others_open(tokenizer, says, caplog):
    dispatcher = ScriptedDispatcher(lambda request: says("abc"))
    running = generation(dispatcher, tokenizer, [request(name="a"), request(name="b")])

    async def fail():
        raise ValueError("cannot close")

    async with running:
        dispatcher.feeds[0].close = fail
    assert dispatcher.num_open == 1
    assert "closing a feed failed" in caplog.text
