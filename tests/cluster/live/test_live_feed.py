"""The feed: nothing is asked of anybody while nobody watches, and the figures are true."""

import asyncio
import json
from dataclasses import replace

import pytest

from cluster.live.live_events import EventLog, ReplicaLook
from cluster.live.live_feed import (
    MAX_WAITING_UPDATES,
    MAX_WATCHERS,
    LiveFeed,
    TooManyWatchers,
    request_label,
)
from cluster.live.live_window import LatencyWindow, RateWindow, percentiles
from cluster.replica.replica_announcement import ReplicaAnnouncement
from cluster.streams.stream_codec import EngineReport
from replicas.engine_stats import EngineStats
from replicas.engine_view import EngineView, RowKind, Span
from router.replica_status import ReplicaState, ReplicaStatus

ANNOUNCEMENT = ReplicaAnnouncement(
    address="127.0.0.1:1",
    role="mixed",
    block_size=16,
    fingerprint="",
    protocol_version=1,
    max_model_len=512,
    num_blocks=96,
)


class FakeReplica:
    """A replica that counts how often it was asked for views."""

    def __init__(self) -> None:
        self.announcement = ANNOUNCEMENT
        self.report = EngineReport(epoch=1)
        self.state = ReplicaState.ACTIVE
        self.view: EngineView | None = None
        self.watches: list[float] = []

    def status(self) -> ReplicaStatus:
        return ReplicaStatus("a", state=self.state)

    def watch(self, seconds: float) -> None:
        self.watches.append(seconds)

    def take_view(self) -> EngineView | None:
        view, self.view = self.view, None
        return view

    def count(self, **totals: int) -> None:
        self.report = replace(self.report, stats=replace(self.report.stats, **totals))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def replica():
    return FakeReplica()


@pytest.fixture
async def feed(clock, replica):
    made = LiveFeed(lambda: {"a": replica}, clock=clock, wall_clock=lambda: 5.0, interval_s=0.01)
    yield made
    await made.close()


async def test_nobody_is_asked_while_nobody_watches(feed, replica):
    await asyncio.sleep(0.05)
    assert replica.watches == []


async def test_a_replica_is_asked_again_before_its_watch_ends(feed, replica, clock):
    watcher = feed.watch()
    await watcher.next_update()
    await watcher.next_update()
    await watcher.next_update()
    assert len(replica.watches) == 1
    clock.now += 0.6
    await watcher.next_update()
    await watcher.next_update()
    assert len(replica.watches) == 2
    assert replica.watches[0] > 0.6


async def test_nobody_is_asked_after_the_last_watcher_left(feed, replica, clock):
    watcher = feed.watch()
    await watcher.next_update()
    await watcher.next_update()
    watcher.close()
    clock.now += 10.0
    asked = len(replica.watches)
    await asyncio.sleep(0.05)
    assert len(replica.watches) == asked
    assert feed.num_watchers == 0


async def test_a_second_watcher_hears_of_events_before_its_time(feed):
    first = feed.watch()
    await first.next_update()
    assert json.loads(await first.next_update())["events"][0]["kind"] == "met"
    second = feed.watch()
    assert json.loads(await second.next_update())["events"][0]["kind"] == "met"


async def test_a_reader_that_does_not_read_holds_a_bounded_number_of_updates(feed):
    feed.watch()
    quick = feed.watch()
    slow = feed.watch()
    for _ in range(MAX_WAITING_UPDATES + 10):
        await quick.next_update()
    held = 0
    while True:
        try:
            async with asyncio.timeout(0.001):
                await slow.next_update()
        except TimeoutError:
            break
        held += 1
    assert held <= MAX_WAITING_UPDATES + 2


async def test_a_reader_is_told_when_the_gateway_ends(feed):
    watcher = feed.watch()
    await watcher.next_update()
    await feed.close()
    while (await watcher.next_update()) is not None:
        pass


async def test_there_is_a_most_of_watchers(feed):
    for _ in range(MAX_WATCHERS):
        feed.watch()
    with pytest.raises(TooManyWatchers):
        feed.watch()


async def test_an_update_that_fails_does_not_end_the_feed(feed, replica):
    watcher = feed.watch()
    await watcher.next_update()
    await watcher.next_update()
    whole, replica.report = replica.report, None
    await asyncio.sleep(0.05)
    replica.report = whole
    for _ in range(10):
        update = json.loads(await watcher.next_update())
    assert update["replicas"][0]["id"] == "a"


def test_rates_and_latencies_of_an_update_are_those_of_the_engine(clock, replica):
    feed = LiveFeed(lambda: {"a": replica}, clock=clock, wall_clock=lambda: 5.0)
    replica.count(generated_tokens_total=100)
    feed.update()
    clock.now += 1.0
    replica.count(generated_tokens_total=150)
    replica.view = EngineView(at=clock.now, ttfts_s=(0.2, 0.4), tpots_s=(0.05,))
    update = feed.update()
    assert update["replicas"][0]["output_tokens_per_s"] == 50.0
    assert update["cluster"]["ttft"] == {"num": 2, "p50": 200.0, "p90": 400.0, "p99": 400.0}
    assert update["replicas"][0]["tpot"]["p50"] == 50.0
    clock.now += 61.0
    assert feed.update()["cluster"]["ttft"] is None


def test_bars_are_told_in_the_gateways_time_by_the_quickest_view(clock, replica):
    feed = LiveFeed(lambda: {"a": replica}, clock=clock, wall_clock=lambda: 5.0)
    span = Span(0, "r", 0, RowKind.DECODE, 1, started_at=9.0, ended_at=9.5)
    # The engine's clock is 990 behind; the first view took 0.3 s, the second none.
    replica.view = EngineView(at=9.7, spans=(span,))
    feed.update()
    clock.now = 1001.0
    replica.view = EngineView(at=11.0, spans=(span,))
    (seen,) = feed.update()["replicas"][0]["view"]["spans"]
    assert seen[5:] == [999.0, 999.5]


def test_a_label_is_the_end_of_the_clients_own_id():
    assert request_label("chatcmpl-0123456789abcdef-1a2b3c4d-0") == "abcdef"
    assert request_label("x") == "x"


# Windows.


def test_a_rate_is_the_growth_of_the_last_two_seconds():
    window = RateWindow()
    assert window.add(0.0, 1000) == 0.0
    for second in range(1, 11):
        rate = window.add(float(second), 1000 + 10 * second)
    assert rate == 10.0
    for second in range(11, 15):
        rate = window.add(float(second), 1100)
    assert rate == 0.0


def test_a_total_that_starts_again_is_no_negative_rate():
    window = RateWindow()
    window.add(0.0, 500)
    assert window.add(1.0, 20) == 0.0
    assert window.add(2.0, 30) == 10.0


def test_percentiles_are_durations_that_occurred():
    found = percentiles(range(1, 101))
    assert (found.num, found.p50, found.p90, found.p99) == (100, 50, 90, 99)
    assert percentiles([7.0]).p99 == 7.0
    assert percentiles([]) is None


def test_old_durations_are_forgotten():
    window = LatencyWindow()
    window.add(0.0, [1.0])
    window.add(30.0, [2.0, 3.0])
    assert window.recent(59.0) == [1.0, 2.0, 3.0]
    assert window.recent(61.0) == [2.0, 3.0]


# Events.


def look(state=ReplicaState.ACTIVE, *, epoch=1, replica_id="a", **totals):
    return ReplicaLook(
        replica_id, "mixed", state, EngineReport(epoch=epoch, stats=EngineStats(**totals))
    )


def told(*looks):
    log = EventLog(lambda: 5.0)
    for one in looks:
        log.look(one)
    return [(event.kind, event.replica_id) for event in log.since(0)]


def test_a_replica_that_comes_and_goes_is_met_and_lost():
    assert told([], [look()], []) == [("met", "a"), ("lost", "a")]


def test_nothing_is_told_of_a_cluster_in_which_nothing_happens():
    assert told([look()], [look()], [look(step=9, generated_tokens_total=5)]) == [("met", "a")]


@pytest.mark.parametrize(
    ("after", "kind"),
    [
        (look(preemptions_total=2, discarded_tokens_total=90), "preempt"),
        (look(refused_total=1), "refuse"),
        (look(epoch=2), "restart"),
        (look(ReplicaState.SUSPECT), "suspect"),
        (look(ReplicaState.DRAINING), "drain"),
        (look(ReplicaState.STARTING), "lost"),
    ],
)
def test_a_change_is_told_once(after, kind):
    assert told([look()], [after], [after]) == [("met", "a"), (kind, "a")]


def test_a_new_core_starts_its_totals_again_without_a_word():
    before, after = look(refused_total=5), look(epoch=2)
    assert told([before], [after]) == [("met", "a"), ("restart", "a")]


def test_the_first_word_of_a_replica_is_no_restart():
    assert told([look(ReplicaState.STARTING, epoch=0)], [look()]) == [("met", "a"), ("met", "a")]


def test_old_events_make_room():
    log = EventLog(lambda: 5.0)
    for number in range(100):
        log.tell("handoff", "a", f"number {number}")
    assert [event.number for event in log.since(97)] == [98, 99, 100]
    assert len(log.since(0)) == 50
