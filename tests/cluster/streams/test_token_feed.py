"""One request's tokens at its gateway: order, joining, ends and errors."""

import asyncio

import pytest

from cluster.errors import ReplicaLost, RequestRefused
from cluster.streams.token_feed import StreamFeed
from replicas.request import FinishReason, Refusal, RefusalReason, TokenEntry
from tests.cluster.replica_harness import a_request


class Told:
    """What a feed asked for."""

    def __init__(self) -> None:
        self.finished: list[int] = []
        self.closed: list[bool] = []


def a_feed(n: int = 1) -> tuple[StreamFeed, Told]:
    told = Told()
    request = a_request(n=n, max_tokens=100)
    feed = StreamFeed(request, on_finish_choice=told.finished.append, on_close=told.closed.append)
    return feed, told


def an_entry(index: int, *token_ids: int, choice: int = 0, **fields: object) -> TokenEntry:
    return TokenEntry("r", 0, choice, index, token_ids=token_ids, **fields)


ADMISSION = an_entry(0)
REFUSAL = Refusal(RefusalReason.EXPIRED, "waited too long")


async def test_admission_is_told_to_the_opener_and_not_to_the_reader():
    feed, _ = a_feed()
    feed.push(ADMISSION)
    await feed.admitted
    feed.push(an_entry(0, 7, finish_reason=FinishReason.STOP))
    assert [entry.token_ids async for entry in feed] == [(7,)]


async def test_a_sign_of_life_without_tokens_wakes_the_reader():
    feed, _ = a_feed()
    feed.push(ADMISSION)
    reading = asyncio.create_task(anext(aiter(feed)))
    await asyncio.sleep(0)
    feed.push(an_entry(0))
    assert (await reading).token_ids == ()


async def test_a_reader_that_waits_is_woken_by_each_entry():
    feed, _ = a_feed()
    reading = asyncio.create_task(anext(aiter(feed)))
    await asyncio.sleep(0)
    feed.push(an_entry(0, 7))
    assert (await reading).token_ids == (7,)


async def test_tokens_before_a_loss_are_read_before_the_loss():
    feed, _ = a_feed()
    feed.push(an_entry(0, 1, 2))
    feed.fail(ReplicaLost("gone"))
    entries = aiter(feed)
    assert (await anext(entries)).token_ids == (1, 2)
    with pytest.raises(ReplicaLost):
        await anext(entries)


async def test_a_loss_after_the_end_is_nobodys_business():
    feed, _ = a_feed()
    feed.push(an_entry(0, 1, finish_reason=FinishReason.LENGTH))
    feed.fail(ReplicaLost("gone"))
    assert [entry.token_ids async for entry in feed] == [(1,)]


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.CANCELLED])
async def test_an_end_that_nobody_asked_for_is_a_loss(reason: FinishReason):
    feed, _ = a_feed(n=2)
    feed.push(ADMISSION)
    feed.push(an_entry(0, finish_reason=reason))
    with pytest.raises(ReplicaLost):
        await anext(aiter(feed))


async def test_a_refusal_before_admission_is_told_to_the_opener():
    feed, _ = a_feed()
    feed.push(an_entry(0, finish_reason=FinishReason.REFUSED, refusal=REFUSAL))
    with pytest.raises(RequestRefused):
        await feed.admitted


async def test_a_refusal_after_admission_is_the_last_entry():
    feed, _ = a_feed(n=3)
    feed.push(ADMISSION)
    feed.push(an_entry(0, finish_reason=FinishReason.REFUSED, refusal=REFUSAL))
    assert [entry.refusal async for entry in feed] == [REFUSAL]


async def test_leaving_early_asks_for_a_cancel_and_only_once():
    feed, told = a_feed()
    feed.push(an_entry(0, 1))
    await feed.close()
    await feed.close()
    assert told.closed == [False]


async def test_leaving_after_the_end_or_after_the_last_stop_string_does_not():
    ended, told_ended = a_feed()
    ended.push(an_entry(0, finish_reason=FinishReason.STOP))
    await ended.close()
    stopped, told_stopped = a_feed(n=2)
    stopped.push(an_entry(0, choice=1, finish_reason=FinishReason.STOP))
    stopped.finish_choice(0)
    await stopped.close()
    assert (told_ended.closed, told_stopped.closed) == ([True], [True])


async def test_a_choice_is_finished_once_and_only_while_it_runs():
    feed, told = a_feed(n=2)
    feed.push(an_entry(0, choice=1, finish_reason=FinishReason.STOP))
    for choice in (0, 0, 1):
        feed.finish_choice(choice)
    assert told.finished == [0]


async def test_a_reader_in_another_task_ends_when_the_feed_is_closed():
    feed, _ = a_feed()

    async def read() -> list[TokenEntry]:
        return [entry async for entry in feed]

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    await feed.close()
    assert await asyncio.wait_for(reading, 1.0) == []


async def test_only_ends_that_have_not_come_are_asked_for_again():
    feed, told = a_feed(n=3)
    for choice in (0, 1):
        feed.finish_choice(choice)
    feed.repeat_finishes()
    assert told.finished == [0, 1, 0, 1]
    feed.push(an_entry(0, choice=0, finish_reason=FinishReason.STOP_STRING))
    feed.repeat_finishes()
    assert told.finished == [0, 1, 0, 1, 1]
    feed.fail(ReplicaLost("gone"))
    feed.repeat_finishes()
    assert told.finished == [0, 1, 0, 1, 1]
