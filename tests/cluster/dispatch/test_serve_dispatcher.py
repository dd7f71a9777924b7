"""From a request to its tokens and back, over real gRPC, with calls in place of Ray Serve."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from cluster.dispatch.replica_link import ReplicaLink
from cluster.errors import NoReplica, ReplicaLost, RequestRefused
from cluster.replica.open_requests import Acknowledgement
from cluster.replica.scripted_engine import EngineScript
from cluster.streams.token_feed import StreamFeed
from replicas.request import FinishReason, RefusalReason
from tests.cluster.replica_harness import (
    FAST,
    Cluster,
    a_gateway,
    a_request,
    cluster,
    expected_tokens,
    read_all,
    until,
)

SLOW = EngineScript(step_s=0.01)
CRASHING = EngineScript(step_s=0.01, crash_token_id=666)


async def test_a_request_gets_exactly_its_tokens_in_order():
    async with cluster() as made:
        request = a_request(max_tokens=50)
        feed = await made.dispatcher.open(request)
        assert await read_all(feed) == {0: expected_tokens(request)}
        await feed.close()


async def test_every_choice_gets_its_own_tokens():
    async with cluster() as made:
        request = a_request(max_tokens=20, n=4)
        feed = await made.dispatcher.open(request)
        tokens = await read_all(feed)
        assert tokens == {choice: expected_tokens(request, choice) for choice in range(4)}
        await feed.close()


async def test_many_requests_at_once_do_not_mix():
    async with cluster(num_replicas=2) as made:

        async def one(number: int) -> None:
            request = a_request(f"r{number}", max_tokens=30, prompt=(number, 7))
            feed = await made.dispatcher.open(request)
            assert await read_all(feed) == {0: expected_tokens(request)}
            await feed.close()

        await asyncio.gather(*(one(number) for number in range(100)))
        made.router.check()
        await until(lambda: made.dispatcher.num_open_calls == 0)
        assert all(link.num_feeds == 0 for link in made.directory.links.values())


async def test_a_slow_reader_finds_tokens_joined_and_none_missing():
    async with cluster() as made:
        request = a_request(max_tokens=400)
        feed = await made.dispatcher.open(request)
        await until(lambda: feed.has_ended)
        entries = [entry async for entry in feed]
        assert len(entries) == 1
        assert list(entries[0].token_ids) == expected_tokens(request)
        assert entries[0].finish_reason is FinishReason.LENGTH
        await feed.close()


async def test_the_last_entry_carries_the_timeline():
    async with cluster() as made:
        feed = await made.dispatcher.open(a_request())
        entries = [entry async for entry in feed]
        timeline = entries[-1].timeline
        assert timeline is not None
        assert timeline.finished_at is not None
        assert timeline.finished_at >= timeline.arrived_at
        await feed.close()


async def test_leaving_cancels_the_request_in_the_engine():
    async with cluster(script=SLOW) as made:
        feed = await made.dispatcher.open(a_request(max_tokens=10_000))
        await anext(aiter(feed))
        await feed.close()
        await feed.close()
        core = made.replicas["replica0"].core
        await until(lambda: core.num_running == 0, timeout_s=0.5)
        assert core.num_cancelled == 1
        assert made.dispatcher.num_open_calls == 0


async def test_withdrawing_during_admission_leaves_nothing_behind():
    async with cluster(script=EngineScript(step_s=0.5)) as made:
        opening = asyncio.create_task(made.dispatcher.open(a_request()))
        await asyncio.sleep(0.1)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await until(lambda: made.replicas["replica0"].core.num_running == 0)
        await until(lambda: made.dispatcher.num_open_calls == 0)
        assert made.router.reserved_tokens("replica0") == 0


async def test_a_stop_string_ends_a_choice_normally_and_the_rest_goes_on():
    async with cluster(script=SLOW) as made:
        request = a_request(max_tokens=60, n=2)
        feed = await made.dispatcher.open(request)
        ends = {}
        async for entry in feed:
            if entry.choice == 0 and entry.index >= 3:
                feed.finish_choice(0)
            if entry.finish_reason is not None:
                ends[entry.choice] = entry.finish_reason
        await feed.close()
        assert ends == {0: FinishReason.STOP_STRING, 1: FinishReason.LENGTH}
        assert made.replicas["replica0"].core.num_cancelled == 0


async def test_leaving_right_after_the_last_stop_string_is_not_a_cancel():
    async with cluster(script=SLOW) as made:
        feed = await made.dispatcher.open(a_request(max_tokens=10_000))
        await anext(aiter(feed))
        feed.finish_choice(0)
        await feed.close()
        await until(lambda: made.dispatcher.num_open_calls == 0)
        assert made.replicas["replica0"].core.num_cancelled == 0


async def test_a_full_replica_is_passed_over_and_a_full_cluster_refuses():
    async with cluster(num_replicas=2, script=EngineScript(step_s=0.01, max_open=1)) as made:
        feeds = [await made.dispatcher.open(a_request(f"r{n}", max_tokens=10_000)) for n in "ab"]
        assert [len(replica.core.running_ids) for replica in made.replicas.values()] == [1, 1]
        with pytest.raises(RequestRefused) as refused:
            await made.dispatcher.open(a_request("c"))
        assert refused.value.refusal.reason is RefusalReason.QUEUE_FULL
        assert refused.value.refusal.retry_after_s == 1.0
        for feed in feeds:
            await feed.close()


async def test_no_replica_is_said_at_once():
    async def never() -> Acknowledgement:
        raise AssertionError("called although there is no replica")

    _, directory, dispatcher = a_gateway(lambda request, route: asyncio.create_task(never()))
    with pytest.raises(NoReplica) as error:
        await dispatcher.open(a_request())
    assert error.value.retry_after_s > 0
    assert not dispatcher.health().is_healthy
    await directory.close()


async def test_two_replicas_share_the_load():
    async with cluster(num_replicas=2, script=SLOW) as made:
        feeds = await asyncio.gather(
            *(made.dispatcher.open(a_request(f"r{n}", max_tokens=1000)) for n in range(20))
        )
        counts = [len(replica.core.running_ids) for replica in made.replicas.values()]
        assert counts == [10, 10]
        for feed in feeds:
            await feed.close()


async def test_a_dead_core_is_an_error_at_once_and_then_serves_again():
    async with cluster(script=CRASHING) as made:
        feed = await made.dispatcher.open(a_request("r1", max_tokens=10_000))
        reading = asyncio.create_task(read_all(feed))
        with pytest.raises(NoReplica):
            await made.dispatcher.open(a_request("r2", prompt=(666,)))
        with pytest.raises(ReplicaLost):
            await asyncio.wait_for(reading, 0.5)
        await feed.close()
        await until(lambda: len(made.replicas["replica0"].cores) == 2)
        await made.ready()
        again = a_request("r3")
        second = await made.dispatcher.open(again)
        assert await read_all(second) == {0: expected_tokens(again)}
        await second.close()


async def test_while_the_core_restarts_nothing_is_offered_to_it():
    script = EngineScript(crash_token_id=666, start_s=0.3)
    async with cluster(script=script) as made:
        with pytest.raises(NoReplica):
            await made.dispatcher.open(a_request(prompt=(666,)))
        with pytest.raises(NoReplica):
            await asyncio.wait_for(made.dispatcher.open(a_request("r2")), 0.2)
        await made.ready()


async def test_a_core_that_dies_before_admission_costs_only_a_retry():
    async with cluster(num_replicas=2) as made, offered_to_a_silent_replica(made) as offered:
        made.replicas[offered.replica_id].core.crash()
        feed = await offered.opening
        assert feed.request.attempt == 1
        assert await read_all(feed) == {0: expected_tokens(feed.request)}
        await feed.close()


async def test_a_replica_that_left_the_set_is_given_up_and_another_is_chosen():
    async with cluster(num_replicas=2) as made:
        async with offered_to_a_silent_replica(made) as offered:
            made.directory.on_not_routed(
                offered.replica_id, "r", 0, "the replica left the deployment"
            )
            feed = await offered.opening
        assert feed.request.attempt == 1
        assert await read_all(feed) == {0: expected_tokens(feed.request)}
        await feed.close()
        await until(lambda: made.replicas[offered.replica_id].core.num_running == 0)


@dataclass(frozen=True)
class Offered:
    """A request that a replica has been offered and has not admitted."""

    replica_id: str
    opening: "asyncio.Task[StreamFeed]"


@asynccontextmanager
async def offered_to_a_silent_replica(made: Cluster) -> AsyncIterator[Offered]:
    """The one that was chosen makes no step meanwhile; any other does."""
    still = {replica_id: ExitStack() for replica_id in made.replicas}
    for replica_id, stack in still.items():
        stack.enter_context(made.replicas[replica_id].core.standing_still())
    opening = asyncio.create_task(made.dispatcher.open(a_request("r", max_tokens=1)))
    await until(lambda: any(r.service.heartbeat().has_work for r in made.replicas.values()))
    chosen = next(k for k, r in made.replicas.items() if r.service.heartbeat().has_work)
    with still.pop(chosen):
        for stack in still.values():
            stack.close()
        yield Offered(chosen, opening)


async def test_a_replica_that_does_not_admit_in_time_is_given_up_for_another():
    impatient = replace(FAST, accept_timeout_s=0.1)
    async with cluster(num_replicas=2, script=EngineScript(step_s=0.5), config=impatient) as made:
        feed = await made.dispatcher.open(a_request())
        assert feed.request.attempt == 1
        await feed.close()
        await until(lambda: all(r.core.num_running == 0 for r in made.replicas.values()))


async def test_a_replica_that_falls_silent_before_it_admits_counts_as_hung_then(monkeypatch):
    hung_soon = replace(FAST, accept_timeout_s=30.0, hung_after_s=0.2)
    async with cluster(num_replicas=2, script=EngineScript(step_s=0.5), config=hung_soon) as made:
        monkeypatch.setattr(ReplicaLink, "silence_s", lambda _link: 0.3)
        feed = await made.dispatcher.open(a_request())
        assert feed.request.attempt == 1
        await feed.close()
        await until(lambda: all(r.core.num_running == 0 for r in made.replicas.values()))


async def test_a_slow_replica_that_is_alone_is_waited_for():
    # Some heartbeats come before it is late, on any machine: they say that it has work.
    impatient = replace(FAST, accept_timeout_s=0.4)
    async with cluster(script=EngineScript(step_s=1.0), config=impatient) as made:
        request = a_request(max_tokens=1)
        feed = await made.dispatcher.open(request)
        assert feed.request.attempt == 0
        assert await read_all(feed) == {0: expected_tokens(request)}
        await feed.close()


async def test_a_replica_that_stands_still_is_given_up_though_it_is_alone():
    impatient = replace(FAST, accept_timeout_s=0.1, stuck_after_s=0.3)
    async with cluster(config=impatient) as made:
        with made.replicas["replica0"].core.standing_still(), pytest.raises(NoReplica):
            await made.dispatcher.open(a_request())
        await until(lambda: made.replicas["replica0"].core.num_running == 0)


async def test_a_draining_replica_finishes_what_it_has_and_gets_nothing_new():
    async with cluster(num_replicas=2, script=SLOW) as made:
        request = a_request("old", max_tokens=60)
        feed = await made.dispatcher.open(request)
        old_home = next(k for k, r in made.replicas.items() if "old" in r.core.running_ids)
        made.announce(old_home)
        news = [await made.dispatcher.open(a_request(f"n{n}", max_tokens=500)) for n in range(6)]
        assert made.replicas[old_home].core.running_ids <= {"old"}
        assert await read_all(feed) == {0: expected_tokens(request)}
        for opened in (feed, *news):
            await opened.close()


async def test_a_draining_replica_is_forgotten_when_its_stream_ends():
    async with cluster(num_replicas=2) as made:
        made.announce("replica1")
        await made.replicas["replica1"].service.close()
        await until(lambda: set(made.directory.links) == {"replica0"})
        made.router.check()
        del made.replicas["replica1"]


async def test_cancelled_requests_leave_no_task_feed_or_reservation():
    async with cluster(num_replicas=2, script=EngineScript(step_s=0.002)) as made:

        async def one(number: int) -> None:
            feed = await made.dispatcher.open(a_request(f"r{number}", max_tokens=200))
            seen = 0
            async for entry in feed:
                seen += len(entry.token_ids)
                if number % 3 == 0 and seen > number:
                    break
            await feed.close()

        await asyncio.gather(*(one(number) for number in range(60)))
        await until(lambda: made.dispatcher.num_open_calls == 0)
        await until(lambda: all(r.core.num_running == 0 for r in made.replicas.values()))
        made.router.check()
        for replica_id, replica in made.replicas.items():
            assert made.router.reserved_tokens(replica_id) == 0
            assert made.directory.links[replica_id].num_feeds == 0
            assert replica.service.heartbeat().report.outstanding_tokens == 0
