"""Whatever dies, hangs or is cut off under load: right tokens, once, in order; nothing is left."""

import asyncio
import random
import time
from collections import Counter

import pytest

from tests.chaos.conftest import Tally
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.load import Load, Outcome, Verdict
from tests.chaos.service import Service, recovered, watched

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.asyncio(loop_scope="module"),
]

NUM_STREAMS = 12
STREAM_TOKENS = 200
# Long enough for every stream to have some tokens, and short enough for none to have all.
LEAD_S = 1.5
ASK_EVERY_S = 0.25
# File descriptors of one process may wander by the connections of idle peers.
FILES_SLACK = 24


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_every_client_gets_its_own_tokens_and_nothing_is_left(
    fault: Fault, service: Service, rounds: int, tallies: dict[str, Tally]
):
    tally = tallies.setdefault(fault.name, Tally())
    for number in range(rounds):
        rng = random.Random(f"{fault.name} {number}")
        async with watched(service) as directory:
            await recovered(service, directory)
            before = open_files(service)
            outcomes = await one_round(fault, service, rng)
            fault.repair(service)
            over_at = time.monotonic()
            await recovered(service, directory)
            after = open_files(service)
        note(tally, outcomes, time.monotonic() - over_at)
        judge(fault, number, outcomes)
        judge_processes(fault, before, after)


async def one_round(fault: Fault, service: Service, rng: random.Random) -> list[Outcome]:
    load = Load(service.url, rng)
    load.begin(NUM_STREAMS, STREAM_TOKENS)
    asking = asyncio.create_task(load.keep_asking(ASK_EVERY_S))
    try:
        await asyncio.sleep(LEAD_S)
        await fault.happen(service, rng)
        await asyncio.sleep(LEAD_S)
    finally:
        load.stop()
        await asking
        outcomes = await load.outcomes()
    return outcomes


def note(tally: Tally, outcomes: list[Outcome], recovery_s: float) -> None:
    counts = Counter(outcome.verdict for outcome in outcomes)
    tally.rounds += 1
    tally.whole += counts[Verdict.WHOLE]
    tally.cut += counts[Verdict.CUT]
    tally.pauses_s.append(max(outcome.pause_s for outcome in outcomes))
    tally.recoveries_s.append(recovery_s)


def judge(fault: Fault, number: int, outcomes: list[Outcome]) -> None:
    allowed = {Verdict.WHOLE, Verdict.CUT} if fault.kills_gateway else {Verdict.WHOLE}
    bad = [outcome for outcome in outcomes if outcome.verdict not in allowed]
    assert not bad, f"round {number}: {len(bad)} of {len(outcomes)}: {bad[:5]}"
    # One gateway of two died: the other one's clients noticed nothing.
    assert any(outcome.verdict is Verdict.WHOLE for outcome in outcomes)


def open_files(service: Service) -> dict[int, int]:
    """Open files, sockets among them, of each gateway and replica by process id."""
    return {process.pid: process.num_fds() for process in (*service.gateways, *service.replicas)}


def judge_processes(fault: Fault, before: dict[int, int], after: dict[int, int]) -> None:
    if fault.keeps_processes:
        assert before.keys() == after.keys()
    grown = {
        pid: (before[pid], after[pid])
        for pid in before.keys() & after.keys()
        if after[pid] > before[pid] + FILES_SLACK
    }
    assert not grown, grown
