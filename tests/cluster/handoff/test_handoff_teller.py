"""What page and metrics hear of hand-offs."""

import asyncio

import pytest

from cluster.handoff import handoff_teller
from cluster.handoff.handoff_teller import HandoffTeller
from cluster.handoff.pair_feed import HandoffResult
from cluster.metrics.figures import Figures


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(handoff_teller, "TELL_INTERVAL_S", 0.0)
    return []


async def test_many_hand_offs_to_one_replica_are_one_line(told):
    teller = HandoffTeller(Figures("gateway"), lambda *event: told.append(event))
    for transport in ("shm", "store", "shm"):
        teller.note(HandoffResult("adopted", "d", 0.02, num_bytes=500_000, transport=transport))
    await asyncio.sleep(0.01)
    assert told == [("handoff", "d", "3 requests taken over, 1.5 MB by shm and store")]


async def test_each_reason_for_none_is_a_line_of_its_own(told):
    teller = HandoffTeller(Figures("gateway"), lambda *event: told.append(event))
    for outcome in ("absent", "no_decode_capacity", "absent"):
        teller.note(HandoffResult(outcome, "d"))
    await asyncio.sleep(0.01)
    assert {text for _, _, text in told} == {
        "2 requests not handed over: absent",
        "1 request not handed over: no decode capacity",
    }


async def test_the_exposed_time_is_observed(told):
    figures = Figures("gateway")
    teller = HandoffTeller(figures, lambda *event: told.append(event))
    teller.note(HandoffResult("adopted", "d", 0.25))
    teller.note(HandoffResult("absent", "d"))
    (series,) = [s for s in figures.series() if s.name == "pagoda:handoff_exposed_seconds"]
    assert series.value == 0.25
    assert sum(series.bucket_counts) == 1
