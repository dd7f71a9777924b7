"""Requests that two replicas share, over real gRPC, with calls in place of Serve."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from cluster.dispatch.failover_dispatcher import FailoverDispatcher, FailoverSettings
from cluster.handoff.handoff_teller import HandoffTeller
from cluster.handoff.pair_dispatcher import PairDispatcher, PairSettings
from cluster.handoff.pair_feed import HandoffResult
from cluster.metrics.gateway_metrics import GatewayMetrics
from cluster.metrics.gateway_reporter import GatewayReporter, PoolSources
from cluster.metrics.pair_catalogue import PAIR_METRICS
from cluster.pools.pool_config import HandoffConfig
from cluster.pools.pool_waking import PoolWaker, WakingDispatcher
from cluster.replica.scripted_engine import EngineScript
from replicas.handoff import HandoffIn, HandoffOut
from replicas.request import FinishReason
from tests.cluster.dispatch.test_failover_dispatcher import after_some_tokens, read
from tests.cluster.replica_harness import (
    FAST,
    Cluster,
    a_request,
    cluster,
    expected_tokens,
    until,
)

STEADY = EngineScript(step_s=0.005)
SILENT = replace(STEADY, publish=None)
CONFIG = replace(
    FAST, hung_after_s=0.5, migrate_after_s=0.2, failover_search_s=10.0, accept_timeout_s=0.5
)
ALWAYS = HandoffConfig(disaggregation="always")


@dataclass
class Pools:
    """Pools of scripted replicas behind pairs and failover."""

    made: Cluster
    pairs: PairDispatcher
    dispatcher: FailoverDispatcher
    results: list[HandoffResult]

    def core(self, name: str):
        return self.made.replicas[name].core

    async def is_clean(self) -> None:
        """Nothing is open or promised anywhere."""
        await until(lambda: all(r.core.num_running == 0 for r in self.made.replicas.values()))
        await until(lambda: self.made.dispatcher.num_open_calls == 0)
        assert self.pairs.num_promises == 0
        self.made.router.check()
        assert all(self.made.router.reserved_tokens(name) == 0 for name in self.made.replicas)


@asynccontextmanager
async def pools(
    prefill: tuple[EngineScript, ...] = (STEADY,),
    decode: tuple[EngineScript, ...] = (STEADY,),
    handoff: HandoffConfig = ALWAYS,
) -> AsyncIterator[Pools]:
    scripts = {"prefill": prefill, "decode": decode}
    results: list[HandoffResult] = []
    async with cluster(pools=scripts, config=CONFIG) as made:
        pairs = PairDispatcher(
            made.dispatcher,
            router=made.router,
            settings=PairSettings(handoff, CONFIG, watermark=0.01, block_size=16),
            clock=time.monotonic,
            on_result=results.append,
        )
        dispatcher = FailoverDispatcher(
            pairs,
            settings=FailoverSettings.of(CONFIG),
            clock=time.monotonic,
            max_model_len=lambda: 100_000,
        )
        dispatcher.start()
        try:
            yield Pools(made, pairs, dispatcher, results)
        finally:
            await dispatcher.close()


async def served(found: Pools, **request) -> None:
    """One request gets exactly its tokens, and nothing of it is left."""
    asked = a_request(**{"max_tokens": 30, **request})
    tokens, ends = await read(await found.dispatcher.open(asked))
    assert tokens == {0: expected_tokens(asked)}
    assert ends == {0: FinishReason.LENGTH}
    await found.is_clean()


def outcomes(found: Pools) -> list[str]:
    return [result.outcome for result in found.results]


async def test_the_first_token_comes_from_prefill_and_the_others_from_decode():
    async with pools() as found:
        asked = a_request(max_tokens=40)
        feed = await found.dispatcher.open(asked)
        assert feed.replica_id == "prefill0"
        entries, tokens = await after_some_tokens(feed, 5)
        assert feed.replica_id == "decode0"
        tokens += [token for entry in [e async for e in entries] for token in entry.token_ids]
        assert tokens == expected_tokens(asked)
        await feed.close()
        await found.is_clean()
        (result,) = found.results
        assert (result.outcome, result.replica_id) == ("adopted", "decode0")
        assert result.exposed_s is not None
        assert found.pairs.results == {"adopted": 1}


async def test_the_moments_of_both_sides_are_told_as_those_of_one():
    async with pools() as found:
        feed = await found.dispatcher.open(a_request(max_tokens=40))
        entries = [entry async for entry in feed]
        first = next(entry for entry in entries if entry.token_ids)
        assert entries[-1].timeline.scheduled_at == first.timeline.scheduled_at
        spent_s = entries[-1].timeline.finished_at - first.timeline.first_token_at
        assert 39 * STEADY.step_s * 0.9 < spent_s < 5.0
        (handed,) = [entry.handoff for entry in entries if entry.handoff is not None][-1:]
        assert (handed.outcome, handed.transport) == ("adopted", "script")
        await feed.close()


async def test_each_side_gets_its_own_part_of_the_request():
    async with pools() as found:
        asked = a_request(max_tokens=40)
        seen = []
        submit = type(found.core("prefill0")).submit
        for name in ("prefill0", "decode0"):
            core = found.core(name)
            core.submit = lambda request, core=core: (seen.append(request), submit(core, request))
        tokens, _ = await read(await found.dispatcher.open(asked))
        prompt, output = seen
        assert isinstance(prompt.handoff, HandoffOut)
        assert isinstance(output.handoff, HandoffIn)
        assert prompt.handoff.generation == output.handoff.generation
        assert (prompt.emitted_token_ids, output.emitted_token_ids) == ((), tuple(tokens[0][:1]))
        assert prompt.attempt != output.attempt


async def test_many_requests_at_once_are_handed_over_and_do_not_mix():
    async with pools((STEADY, STEADY), (STEADY, STEADY)) as found:
        asked = [a_request(f"r{n}", max_tokens=20, prompt=(n, 7)) for n in range(40)]
        feeds = await asyncio.gather(*(found.dispatcher.open(request) for request in asked))
        found_tokens = await asyncio.gather(*(read(feed) for feed in feeds))
        for request, (tokens, _) in zip(asked, found_tokens, strict=True):
            assert tokens == {0: expected_tokens(request)}
        assert found.pairs.results == {"adopted": 40}
        await found.is_clean()


@pytest.mark.parametrize("fault", ["unavailable", "no_room", "expired"])
async def test_a_prompt_that_cannot_be_published_is_computed_by_the_decode_side(fault):
    async with pools(prefill=(replace(STEADY, publish=fault),)) as found:
        await served(found)
        assert outcomes(found) == [fault]


@pytest.mark.parametrize("fault", ["absent", "expired", "stale", "corrupt", "incompatible"])
async def test_a_hand_off_that_is_not_adopted_is_computed_by_the_decode_side(fault):
    async with pools(decode=(replace(STEADY, adopt=fault),)) as found:
        await served(found)
        assert outcomes(found) == [fault]


async def test_a_prefill_replica_that_never_publishes_is_given_up_in_time():
    impatient = replace(ALWAYS, handoff_prefill_timeout_s=0.2)
    async with pools(prefill=(SILENT,), handoff=impatient) as found:
        await served(found)
        assert outcomes(found) == ["prefill_timeout"]


async def test_a_prefill_replica_that_dies_costs_a_prefill_and_no_stream():
    async with pools(prefill=(SILENT,)) as found:
        asked = a_request(max_tokens=40)
        feed = await found.dispatcher.open(asked)
        reading = asyncio.create_task(read(feed))
        await asyncio.sleep(0.1)
        found.core("prefill0").crash()
        assert await reading == ({0: expected_tokens(asked)}, {0: FinishReason.LENGTH})
        assert outcomes(found) == ["prefill_gone"]
        assert not found.dispatcher.counts
        await found.is_clean()


async def test_a_prefill_replica_that_hangs_loses_its_part_to_the_decode_side():
    async with pools() as found:
        asked = a_request(max_tokens=40)
        with found.core("prefill0").standing_still():
            feed = await found.dispatcher.open(asked)
            assert await read(feed) == ({0: expected_tokens(asked)}, {0: FinishReason.LENGTH})
        assert outcomes(found) == ["prefill_refused"]
        await found.is_clean()


async def test_a_full_prefill_pool_leaves_prompts_to_the_decode_side():
    async with pools(prefill=(replace(STEADY, max_open=0),)) as found:
        await served(found)
        assert outcomes(found) == ["prefill_refused"]


async def test_a_stream_goes_on_when_its_decode_replica_dies():
    async with pools(decode=(STEADY, STEADY)) as found:
        asked = a_request(max_tokens=80)
        feed = await found.dispatcher.open(asked)
        entries, tokens = await after_some_tokens(feed, 10)
        found.core(feed.replica_id).crash()
        tokens += [token for entry in [e async for e in entries] for token in entry.token_ids]
        assert tokens == expected_tokens(asked)
        assert found.dispatcher.counts == {"lost": 1}
        await feed.close()
        await found.is_clean()


async def test_another_decode_replica_takes_what_the_promised_one_cannot():
    async with pools(prefill=(SILENT,), decode=(STEADY, STEADY)) as found:
        asked = a_request(max_tokens=40)
        feed = await found.dispatcher.open(asked)
        promised = feed._feed._place.replica_id
        gone = found.made.replicas.pop(promised)
        await gone.service.close()
        reading = asyncio.create_task(read(feed))
        found.core("prefill0").crash()
        assert (await reading)[0] == {0: expected_tokens(asked)}
        await found.is_clean()


async def test_a_decode_pool_at_capacity_lets_requests_wait_in_its_own_line():
    mean = replace(ALWAYS, max_handoffs=1, handoff_reserve_timeout_s=0.1)
    async with pools(prefill=(SILENT,), handoff=mean) as found:
        held = await found.dispatcher.open(a_request("held", max_tokens=1000))
        second = a_request("second", max_tokens=20)
        assert (await read(await found.dispatcher.open(second)))[0] == {0: expected_tokens(second)}
        assert outcomes(found) == ["no_decode_capacity"]
        await held.close()
        await found.is_clean()


async def test_room_that_is_given_back_goes_to_who_waits_longest():
    mean = replace(ALWAYS, max_handoffs=1)
    async with pools(handoff=mean) as found:
        asked = [a_request(f"r{n}", max_tokens=20, prompt=(n, 7)) for n in range(6)]
        results = await asyncio.gather(*(served_tokens(found, request) for request in asked))
        assert results == [{0: expected_tokens(request)} for request in asked]
        assert found.pairs.results == {"adopted": 6}
        await found.is_clean()


async def served_tokens(found: Pools, request) -> dict[int, list[int]]:
    return (await read(await found.dispatcher.open(request)))[0]


@pytest.mark.parametrize("num_tokens", [0, 1, 3])
async def test_a_client_that_leaves_at_any_moment_leaves_nothing_behind(num_tokens):
    async with pools() as found:
        feed = await found.dispatcher.open(a_request(max_tokens=1000))
        await after_some_tokens(feed, num_tokens)
        await feed.close()
        await found.is_clean()


async def test_a_reader_that_is_cancelled_while_it_closes_has_closed():
    async with pools() as found:
        feed = await found.dispatcher.open(a_request(max_tokens=5))
        await read(feed)
        closing = asyncio.create_task(feed.close())
        await asyncio.sleep(0)
        assert closing.done(), "who closes may be cancelled as soon as it waits"
        await found.is_clean()
        for _ in range(3):
            feed = await found.dispatcher.open(a_request(max_tokens=1000))
            await after_some_tokens(feed, 1)
            closing = asyncio.create_task(feed.close())
            await asyncio.sleep(0)
            assert closing.done()
        await found.is_clean()


async def test_a_third_of_clients_leave_at_random_and_nothing_is_left():
    async with pools((STEADY,), (STEADY, STEADY)) as found:

        async def one(number: int) -> None:
            asked = a_request(f"r{number}", max_tokens=20, prompt=(number, 3))
            if number % 3:
                assert await served_tokens(found, asked) == {0: expected_tokens(asked)}
                return
            task = asyncio.create_task(served_tokens_and_close(found, asked))
            await asyncio.sleep(0.004 * (number % 10))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        for _ in range(3):
            await asyncio.gather(*(one(number) for number in range(30)))
        await found.is_clean()


async def served_tokens_and_close(found: Pools, request) -> None:
    feed = await found.dispatcher.open(request)
    try:
        await read(feed)
        await asyncio.sleep(10)
    finally:
        await feed.close()


async def test_a_stop_string_in_the_first_token_ends_the_request_at_once():
    async with pools(prefill=(SILENT,)) as found:
        feed = await found.dispatcher.open(a_request(max_tokens=40))
        entries, _ = await after_some_tokens(feed, 1)
        feed.finish_choice(0)
        last = [entry async for entry in entries][-1]
        assert last.finish_reason is FinishReason.STOP_STRING
        await feed.close()
        await found.is_clean()
        assert found.core("decode0").num_cancelled == found.core("prefill0").num_cancelled == 0


@pytest.mark.parametrize(
    ("request_changes", "handoff", "reason"),
    [
        ({"prompt": (1, 2)}, HandoffConfig(), "short_prompt"),
        ({"prompt": tuple(range(200))}, HandoffConfig(), "unmeasured"),
        ({"n": 2}, ALWAYS, "several_choices"),
        ({"max_tokens": 1}, ALWAYS, "one_token"),
        ({}, HandoffConfig(disaggregation="never"), "forced"),
        ({}, ALWAYS, "forced"),
    ],
)
async def test_every_decision_is_counted_with_its_reason(request_changes, handoff, reason):
    async with pools(handoff=handoff) as found:
        tokens, _ = await read(await found.dispatcher.open(a_request(**request_changes)))
        assert len(tokens[0]) == request_changes.get("max_tokens", 5)
        assert found.pairs.decisions == {reason: 1}
        await found.is_clean()


async def test_a_weighed_request_counts_as_one_choice_on_each_side_that_it_uses():
    async with pools(handoff=HandoffConfig()) as found:
        await read(await found.dispatcher.open(a_request(prompt=(1, 2))))
        assert sum(found.made.router.decisions.values()) == 1
        await read(await found.dispatcher.open(a_request(prompt=tuple(range(200)))))
        assert found.pairs.decisions == {"short_prompt": 1, "unmeasured": 1}
        assert sum(found.made.router.decisions.values()) == 3
        await found.is_clean()


async def test_without_a_prefill_replica_the_decode_side_does_all():
    async with pools(prefill=()) as found:
        await served(found)
        assert found.pairs.decisions == {"no_prefill_replica": 1}


async def test_without_a_decode_replica_the_prefill_side_does_all():
    async with pools(decode=()) as found:
        await served(found)
        assert found.pairs.decisions == {"no_decode_replica": 1}


async def test_a_gateway_reports_what_its_pools_do():
    async with pools() as found:
        await served(found)
        metrics = GatewayMetrics()
        waking = WakingDispatcher(
            found.pairs,
            router=found.made.router,
            waker=PoolWaker({}),
            hold_timeout_s=1.0,
            min_prompt_tokens=64,
        )
        reporter = GatewayReporter(
            metrics,
            router=found.made.router,
            directory=found.made.directory,
            pools=PoolSources(waking, found.pairs),
        )
        teller = HandoffTeller(metrics.figures, lambda *_event: None)
        for result in found.results:
            teller.note(result)
        reporter.report()
        series = {(s.name, *s.labels): s.value for s in metrics.figures.series()}
        assert series["pagoda:disaggregation_decisions", "forced"] == 1
        assert series["pagoda:handoff_results", "adopted"] == 1
        assert series["pagoda:promised_handoffs",] == series["pagoda:held_requests",] == 0
        names = {name for name, *_ in series}
        assert {metric.name for metric in PAIR_METRICS} <= names
