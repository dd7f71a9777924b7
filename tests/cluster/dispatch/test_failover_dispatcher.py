"""Streams that go on when their replicas do not, over real gRPC, with calls in place of Serve."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from cluster.dispatch.dispatcher import ClusterHealth
from cluster.dispatch.failover_dispatcher import FailoverDispatcher, FailoverSettings
from cluster.errors import NoReplica, ReplicaLost
from cluster.replica.scripted_engine import EngineScript
from cluster.streams.token_feed import StreamFeed
from replicas.request import FinishReason, TokenEntry
from tests.cluster.replica_harness import (
    FAST,
    Cluster,
    a_request,
    cluster,
    expected_tokens,
    until,
)

SLOW = EngineScript(step_s=0.01)
CONFIG = replace(FAST, hung_after_s=0.5, migrate_after_s=0.2, failover_search_s=10.0)


@asynccontextmanager
async def surviving(
    num_replicas: int = 2, script: EngineScript = SLOW, config=CONFIG, max_model_len: int = 100_000
) -> AsyncIterator[tuple[Cluster, FailoverDispatcher]]:
    """A cluster, and a dispatcher over it whose streams move on; nothing open at the end."""
    async with cluster(num_replicas, script, config=config) as made:
        dispatcher = FailoverDispatcher(
            made.dispatcher,
            settings=FailoverSettings.of(config),
            clock=time.monotonic,
            max_model_len=lambda: max_model_len,
        )
        dispatcher.start()
        try:
            yield made, dispatcher
            assert dispatcher.num_open == 0, "a stream was not closed"
        finally:
            await dispatcher.close()


async def read(feed) -> tuple[dict[int, list[int]], dict[int, FinishReason]]:
    """Tokens and ends by choice; every entry starts where the last one ended."""
    tokens: dict[int, list[int]] = {}
    ends: dict[int, FinishReason] = {}
    async for entry in feed:
        so_far = tokens.setdefault(entry.choice, [])
        if entry.token_ids:
            assert entry.index == len(so_far), (entry, so_far)
        so_far.extend(entry.token_ids)
        if entry.finish_reason is not None:
            assert entry.choice not in ends, "a choice ended twice"
            ends[entry.choice] = entry.finish_reason
    await feed.close()
    return tokens, ends


def home_of(made: Cluster, request_id: str) -> str:
    return next(k for k, r in made.replicas.items() if request_id in r.core.running_ids)


async def after_some_tokens(feed, num_tokens: int):
    """An iterator over the rest of the feed's entries, and what came so far."""
    entries, tokens = aiter(feed), []
    while len(tokens) < num_tokens:
        entry = await anext(entries)
        tokens.extend(entry.token_ids)
    return entries, tokens


async def test_a_stream_goes_on_where_its_lost_core_stopped():
    async with surviving() as (made, dispatcher):
        request = a_request(max_tokens=80)
        feed = await dispatcher.open(request)
        entries, tokens = await after_some_tokens(feed, 10)
        left = feed.replica_id
        made.replicas[left].core.crash()
        async for entry in entries:
            assert entry.index == len(tokens)
            tokens.extend(entry.token_ids)
        assert tokens == expected_tokens(request)
        assert entry.finish_reason is FinishReason.LENGTH
        assert dispatcher.counts == {"lost": 1}
        await feed.close()


async def test_a_lone_replica_whose_core_restarts_goes_on_with_its_own_requests():
    async with surviving(num_replicas=1) as (made, dispatcher):
        request = a_request(max_tokens=60)
        feed = await dispatcher.open(request)
        reading = asyncio.create_task(read(feed))
        await until(lambda: "r" in made.replicas["replica0"].core.running_ids)
        await asyncio.sleep(0.1)
        made.replicas["replica0"].core.crash()
        assert await reading == ({0: expected_tokens(request)}, {0: FinishReason.LENGTH})


async def test_every_choice_of_a_lost_request_gets_its_tokens_once():
    async with surviving() as (made, dispatcher):
        request = a_request(max_tokens=60, n=3)
        feed = await dispatcher.open(request)
        reading = asyncio.create_task(read(feed))
        await asyncio.sleep(0.2)
        made.replicas[feed.replica_id].core.crash()
        tokens, ends = await reading
        assert tokens == {choice: expected_tokens(request, choice) for choice in range(3)}
        assert ends == dict.fromkeys(range(3), FinishReason.LENGTH)


async def test_many_streams_survive_a_replica_that_ends_for_good():
    async with surviving(num_replicas=3) as (made, dispatcher):
        requests = [a_request(f"r{n}", max_tokens=60, prompt=(n, 3)) for n in range(30)]
        feeds = await asyncio.gather(*(dispatcher.open(request) for request in requests))
        reading = [asyncio.create_task(read(feed)) for feed in feeds]
        gone = made.replicas.pop(feeds[0].replica_id)
        await gone.service.close()
        results = await asyncio.gather(*reading)
        for request, (tokens, _) in zip(requests, results, strict=True):
            assert tokens == {0: expected_tokens(request)}
        assert dispatcher.counts["lost"] >= 1
        await until(lambda: all(r.core.num_running == 0 for r in made.replicas.values()))


async def test_a_draining_replica_gives_its_long_requests_away_after_the_grace_time():
    async with surviving() as (made, dispatcher):
        request = a_request(max_tokens=150)
        feed = await dispatcher.open(request)
        left = feed.replica_id
        reading = asyncio.create_task(read(feed))
        made.announce(left)
        await until(lambda: feed.replica_id not in ("", left), timeout_s=5)
        assert (await reading)[0] == {0: expected_tokens(request)}
        assert dispatcher.counts == {"draining": 1}
        await until(lambda: made.replicas[left].core.num_running == 0)


async def test_a_draining_replica_finishes_short_requests_itself():
    patient = replace(CONFIG, migrate_after_s=30.0)
    async with surviving(config=patient) as (made, dispatcher):
        request = a_request(max_tokens=20)
        feed = await dispatcher.open(request)
        made.announce(feed.replica_id)
        assert (await read(feed))[0] == {0: expected_tokens(request)}
        assert not dispatcher.counts


async def test_a_replica_that_stands_still_loses_its_requests_to_another():
    impatient = replace(CONFIG, stuck_after_s=0.3)
    async with surviving(config=impatient) as (made, dispatcher):
        request = a_request(max_tokens=60)
        feed = await dispatcher.open(request)
        left = feed.replica_id
        reading = asyncio.create_task(read(feed))
        await until(lambda: "r" in made.replicas[left].core.running_ids)
        with made.replicas[left].core.standing_still():
            assert (await reading)[0] == {0: expected_tokens(request)}
        assert dispatcher.counts == {"hung": 1}
        await until(lambda: made.replicas[left].core.num_running == 0)


async def test_a_choice_that_a_stop_string_ended_does_not_come_back():
    async with surviving() as (made, dispatcher):
        feed = await dispatcher.open(a_request(max_tokens=100_000))
        entries, _ = await after_some_tokens(feed, 5)
        # The replica dies before it can answer that the choice has ended.
        with made.replicas[feed.replica_id].core.standing_still():
            feed.finish_choice(0)
            made.replicas[feed.replica_id].core.crash()
        last = [entry async for entry in entries][-1]
        assert last.finish_reason is FinishReason.STOP_STRING
        await feed.close()
        await until(lambda: all(r.core.num_running == 0 for r in made.replicas.values()))


async def test_a_client_that_leaves_between_two_replicas_leaves_nothing_behind():
    async with surviving(num_replicas=1, script=EngineScript(step_s=0.01, start_s=0.5)) as (
        made,
        dispatcher,
    ):
        feed = await dispatcher.open(a_request(max_tokens=1000))
        reading = asyncio.create_task(read(feed))
        await asyncio.sleep(0.1)
        made.replicas["replica0"].core.crash()
        await until(lambda: feed.replica_id == "")
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await feed.close()
        # The stream tells of the loss before the heartbeat does: the gateway may not know it yet.
        await until(lambda: len(made.replicas["replica0"].cores) == 2)
        later = a_request("later", max_tokens=20)
        assert (await read(await dispatcher.open(later)))[0] == {0: expected_tokens(later)}
        assert made.replicas["replica0"].core.num_running == 0


async def test_a_stream_ends_with_an_error_when_no_replica_comes_back_in_time():
    impatient = replace(CONFIG, failover_search_s=0.3)
    async with surviving(num_replicas=1, config=impatient) as (made, dispatcher):
        feed = await dispatcher.open(a_request(max_tokens=1000))
        reading = asyncio.create_task(read(feed))
        await asyncio.sleep(0.1)
        await made.replicas["replica0"].service.close()
        with pytest.raises(ReplicaLost):
            await reading
        await feed.close()


async def test_attempts_are_bounded_for_one_request_and_for_all():
    mean = replace(CONFIG, max_attempts=2)
    async with surviving(config=mean) as (made, dispatcher):
        feed = await dispatcher.open(a_request(max_tokens=1000))
        reading = asyncio.create_task(read(feed))
        for _ in range(2):
            await until(lambda: any("r" in r.core.running_ids for r in made.replicas.values()))
            await asyncio.sleep(0.05)
            made.replicas[home_of(made, "r")].core.crash()
        with pytest.raises(ReplicaLost):
            await reading
        assert dispatcher.counts["given_up_attempts"] == 1
        await feed.close()


async def test_the_first_attempt_is_refused_as_ever():
    async with surviving(num_replicas=1) as (made, dispatcher):
        made.announce("replica0")
        with pytest.raises(NoReplica):
            await dispatcher.open(a_request())


async def test_a_new_request_waits_for_a_replica_that_is_starting():
    """As in a rolling update: the one that goes is known to go before the new one is reached."""
    script = EngineScript(step_s=0.01, start_s=0.5)
    async with surviving(num_replicas=1, script=script) as (made, dispatcher):
        made.replicas["replica0"].core.crash()
        await until(lambda: dispatcher.health().num_replicas == 0)
        assert dispatcher.health().num_starting == 1
        request = a_request()
        feed = await dispatcher.open(request)
        assert (await read(feed))[0] == {0: expected_tokens(request)}


async def test_a_new_request_waits_no_longer_than_it_may():
    impatient = replace(CONFIG, first_search_s=0.1)
    async with surviving(num_replicas=1, config=impatient) as (made, dispatcher):
        await made.replicas["replica0"].service.close()
        await until(lambda: dispatcher.health().num_replicas == 0)
        assert dispatcher.health().num_starting == 1
        with pytest.raises(NoReplica):
            await dispatcher.open(a_request())


async def test_a_new_request_over_which_replicas_were_lost_does_not_come_to_them_again():
    script = EngineScript(step_s=0.01, start_s=0.2, crash_token_id=666)
    async with surviving(script=script) as (made, dispatcher):
        with pytest.raises(NoReplica):
            await dispatcher.open(a_request(prompt=(1, 666)))
        assert [len(replica.cores) for replica in made.replicas.values()] == [1, 1]
        await until(lambda: dispatcher.health().num_replicas == 2)


async def test_a_new_request_that_a_leaving_replica_turned_away_is_offered_with_a_new_number():
    class TurnedAway(ByHand):
        def health(self):
            return ClusterHealth(0, num_starting=1)

        async def open(self, request, *, avoid=frozenset()):
            attempts.append(request.attempt)
            if len(attempts) < 3:
                raise NoReplica("gone", may_wait=True, was_asked=True)
            return await super().open(request, avoid=avoid)

    attempts: list[int] = []
    settings = FailoverSettings.of(CONFIG)
    dispatcher = FailoverDispatcher(
        TurnedAway(), settings=settings, clock=time.monotonic, max_model_len=lambda: 1000
    )
    feed = await dispatcher.open(a_request())
    assert attempts == [0, 2 * CONFIG.max_tries, 4 * CONFIG.max_tries]
    assert max(attempts) + 2 * CONFIG.max_tries <= settings.attempt_numbers
    await feed.close()


class ByHand:
    """An AttemptDispatcher whose replicas say what the test says."""

    def __init__(self) -> None:
        self.feeds: list[StreamFeed] = []

    async def open(self, request, *, avoid=frozenset()):
        feed = StreamFeed(
            request,
            on_finish_choice=lambda choice: None,
            on_close=lambda may_end: None,
            replica_id=f"replica{len(self.feeds)}",
        )
        self.feeds.append(feed)
        return feed

    def say(self, attempt: int, choice: int, index: int, *token_ids: int) -> None:
        entry = TokenEntry("r", attempt, choice, index, token_ids=token_ids)
        self.feeds[-1].push(entry)

    def health(self) -> ClusterHealth:
        return ClusterHealth(1)

    def trouble(self, feed) -> None:
        return None

    async def close(self) -> None:
        return None


async def moved_on(attempts: ByHand, request, *first_tokens: int):
    """The rest of a stream whose first attempt was lost; its second one has been admitted."""
    dispatcher = FailoverDispatcher(
        attempts,
        settings=FailoverSettings.of(CONFIG),
        clock=time.monotonic,
        max_model_len=lambda: 100_000,
    )
    entries = aiter(await dispatcher.open(request))
    attempts.say(0, 0, 0)
    if first_tokens:
        attempts.say(0, 0, 0, *first_tokens)
        assert (await anext(entries)).token_ids == first_tokens
    attempts.feeds[0].fail(ReplicaLost("gone"))
    following = asyncio.create_task(anext(entries))
    await until(lambda: len(attempts.feeds) == 2)
    attempts.say(1, 0, 0)
    await asyncio.sleep(0)
    assert not following.done(), "an admission is no news"
    return following


async def test_signs_of_life_of_a_later_attempt_are_passed_on():
    attempts = ByHand()
    following = await moved_on(attempts, a_request(n=2))
    attempts.say(1, 0, 0)
    async with asyncio.timeout(1):
        assert (await following).token_ids == ()


async def test_tokens_that_are_made_again_are_signs_of_life():
    attempts = ByHand()
    following = await moved_on(attempts, a_request(n=2, max_tokens=10), 7, 8, 9)
    attempts.say(1, 0, 0, 7, 8)
    async with asyncio.timeout(1):
        again = await following
    assert (again.index, again.token_ids) == (2, ())
