"""One fault after another under load, and what every client and every part of it must show."""

import asyncio
import logging
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field

from cluster.dispatch.replica_directory import ReplicaDirectory
from tests.chaos.faults import Fault
from tests.chaos.load import Load, Outcome, Verdict
from tests.chaos.service import PATIENCE_S, Service, recovered, watched, whole_again
from tests.cluster.replica_harness import until

log = logging.getLogger(__name__)

NUM_STREAMS = 12
STREAM_TOKENS = 200
# For what a fault does late, while short requests go on coming.
TAIL_S = 4.0
ASK_EVERY_S = 0.25
# Files and threads of one process may wander by the connections of idle peers.
SLACK = 24


@dataclass
class Tally:
    """Figures of one fault over its rounds.

    pauses_s: the longest of any client, in each round. recoveries_s: from the moment the fault was
    over until every part was there again. complaints: what must not be.
    """

    rounds: int = 0
    whole: int = 0
    cut: int = 0
    pauses_s: list[float] = field(default_factory=list)
    recoveries_s: list[float] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"rounds={self.rounds} requests={self.whole + self.cut} whole={self.whole} "
            f"cut={self.cut} bad={len(self.complaints)} "
            f"pause_s={_middle_and_most(self.pauses_s)} "
            f"recovery_s={_middle_and_most(self.recoveries_s)} round_s={self.round_s:.1f}"
        )

    @property
    def round_s(self) -> float:
        """Mean length of a round."""
        return self.seconds / self.rounds if self.rounds else 0.0


def _middle_and_most(values: list[float]) -> str:
    if not values:
        return "none"
    return f"{statistics.median(values):.1f}/{max(values):.1f}"


async def run_rounds(fault: Fault, service: Service, rounds: int, tally: Tally) -> None:
    """Do it so many times; raises AssertionError for what must not be, after the last one."""
    for number in range(rounds):
        began_at = time.monotonic()
        rng = random.Random(f"{fault.name} {number}")
        async with watched(service) as directory:
            tasks = await recovered(service, directory)
            before = weights(service)
            outcomes = await one_round(fault, service, directory, rng, tally)
            await recovered(service, directory, tasks)
            after = weights(service)
        tally.seconds += time.monotonic() - began_at
        complaints = [*judge(fault, outcomes), *judge_processes(fault, before, after)]
        tally.complaints += [f"round {number}: {complaint}" for complaint in complaints]
        log.info("chaos round fault=%s number=%d %s", fault.name, number, tally)
    assert not tally.complaints, "\n".join(tally.complaints)


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
        recovering = asyncio.create_task(seconds_until_whole(service, directory))
        await asyncio.sleep(TAIL_S)
    finally:
        load.stop()
        await asking
        outcomes = await load.outcomes()
    note(tally, outcomes, await recovering)
    return outcomes


async def seconds_until_whole(service: Service, directory: ReplicaDirectory) -> float:
    """From now on."""
    began_at = time.monotonic()
    await whole_again(service, directory)
    return time.monotonic() - began_at


def everybody_decodes(directory: ReplicaDirectory) -> bool:
    """Whether every replica that may has long streams under way, so that a fault hits some."""
    return all(
        link.report.stats.num_running > 0
        for link in directory.links.values()
        if link.announcement.role != "prefill"
    )


def note(tally: Tally, outcomes: list[Outcome], recovery_s: float) -> None:
    """Add a round to the figures."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    tally.rounds += 1
    tally.whole += counts[Verdict.WHOLE]
    tally.cut += counts[Verdict.CUT]
    tally.pauses_s.append(max(outcome.pause_s for outcome in outcomes))
    tally.recoveries_s.append(recovery_s)


def judge(fault: Fault, outcomes: list[Outcome]) -> list[str]:
    """What no client may get."""
    allowed = {Verdict.WHOLE, Verdict.CUT} if fault.kills_gateway else {Verdict.WHOLE}
    bad = [outcome for outcome in outcomes if outcome.verdict not in allowed]
    complaints = [f"{len(bad)} of {len(outcomes)} clients: {bad[:5]}"] if bad else []
    # Nobody waits for what is gone or hangs to come back by itself.
    longest_s = max(outcome.pause_s for outcome in outcomes)
    if longest_s >= fault.longest_pause_s:
        complaints.append(f"a pause of {longest_s:.1f} s")
    # One gateway of two died: the other one's clients noticed nothing.
    if not any(outcome.verdict is Verdict.WHOLE for outcome in outcomes):
        complaints.append("nobody was served")
    return complaints


def weights(service: Service) -> dict[str, dict[int, int]]:
    """Open files, sockets among them, and threads by process id, of gateways and of replicas."""
    kinds = {"gateway": service.gateways, "replica": service.replicas}
    return {
        kind: {process.pid: process.num_fds() + process.num_threads() for process in processes}
        for kind, processes in kinds.items()
    }


def judge_processes(
    fault: Fault, before: dict[str, dict[int, int]], after: dict[str, dict[int, int]]
) -> list[str]:
    """What no process may have become that lived through it.

    A young one grows until it has as much as the others of its kind, and no further.
    """
    complaints = []
    for kind, old in before.items():
        new = after[kind]
        if fault.keeps_processes and old.keys() != new.keys():
            complaints.append(f"other {kind} processes: {old} became {new}")
        most = max(old.values()) + SLACK
        grown = {pid: (old[pid], new[pid]) for pid in old.keys() & new.keys() if new[pid] > most}
        if grown:
            complaints.append(f"files and threads of a {kind} grew: {grown}")
    return complaints
