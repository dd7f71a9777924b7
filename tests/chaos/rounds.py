"""One fault after another under load, and what every client and every part of it must show."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from cluster.dispatch.replica_directory import ReplicaDirectory
from tests.chaos.faults import Fault
from tests.chaos.load import Load, Outcome, Verdict
from tests.chaos.service import PATIENCE_S, Service, is_whole, recovered, watched
from tests.cluster.replica_harness import until

NUM_STREAMS = 12
STREAM_TOKENS = 200
# For what a fault does late, while short requests go on coming.
TAIL_S = 4.0
ASK_EVERY_S = 0.25
# Files and threads of one process may wander by the connections of idle peers.
SLACK = 24


@dataclass
class Tally:
    """Figures of one fault over its rounds; recoveries from the moment it was over."""

    rounds: int = 0
    whole: int = 0
    cut: int = 0
    pauses_s: list[float] = field(default_factory=list)
    recoveries_s: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"rounds={self.rounds} whole={self.whole} cut={self.cut} "
            f"longest_pause_s={max(self.pauses_s, default=0.0):.1f} "
            f"longest_recovery_s={max(self.recoveries_s, default=0.0):.1f}"
        )


async def run_rounds(fault: Fault, service: Service, rounds: int, tally: Tally) -> None:
    """Do it so many times; raises AssertionError for what must not be."""
    for number in range(rounds):
        rng = random.Random(f"{fault.name} {number}")
        async with watched(service) as directory:
            await recovered(service, directory)
            before = weights(service)
            outcomes = await one_round(fault, service, directory, rng, tally)
            await recovered(service, directory)
            after = weights(service)
        judge(fault, number, outcomes)
        judge_processes(fault, before, after)
    await until(lambda: service.kept_for_requests() == [], timeout_s=PATIENCE_S)


async def one_round(
    fault: Fault, service: Service, directory: ReplicaDirectory, rng: random.Random, tally: Tally
) -> list[Outcome]:
    """The fault in the middle of a load; returns when every client has an ending."""
    load = Load(service.url, rng)
    load.begin(NUM_STREAMS, STREAM_TOKENS)
    asking = asyncio.create_task(load.keep_asking(ASK_EVERY_S))
    try:
        await until(lambda: everybody_decodes(directory), timeout_s=PATIENCE_S)
        await fault.happen(service, rng)
        fault.repair(service)
        over_at = time.monotonic()
        await asyncio.sleep(TAIL_S)
    finally:
        load.stop()
        await asking
        outcomes = await load.outcomes()
    await until(lambda: is_whole(service, directory), timeout_s=PATIENCE_S)
    note(tally, outcomes, time.monotonic() - over_at)
    return outcomes


def everybody_decodes(directory: ReplicaDirectory) -> bool:
    """Whether every replica that may has long streams under way, so that a fault hits some."""
    return all(
        link.report.stats.num_running > 0
        for link in directory.links.values()
        if link.announcement.role != "prefill"
    )


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
    # Nobody waits for what is gone or hangs to come back by itself.
    longest_s = max(outcome.pause_s for outcome in outcomes)
    assert longest_s < fault.longest_pause_s, f"round {number}: a pause of {longest_s:.1f} s"
    assert not bad, f"round {number}: {len(bad)} of {len(outcomes)}: {bad[:5]}"
    # One gateway of two died: the other one's clients noticed nothing.
    assert any(outcome.verdict is Verdict.WHOLE for outcome in outcomes)


def weights(service: Service) -> dict[int, int]:
    """Open files, sockets among them, and threads of each gateway and replica by process id."""
    return {
        process.pid: process.num_fds() + process.num_threads()
        for process in (*service.gateways, *service.replicas)
    }


def judge_processes(fault: Fault, before: dict[int, int], after: dict[int, int]) -> None:
    """None that lived through it holds more than before."""
    if fault.keeps_processes:
        assert before.keys() == after.keys()
    grown = {
        pid: (before[pid], after[pid])
        for pid in before.keys() & after.keys()
        if after[pid] > before[pid] + SLACK
    }
    assert not grown, grown
