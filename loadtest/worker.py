"""Runs one process's share of a load test and hands its records back."""

import asyncio
import gc
import itertools
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

import uvloop

from loadtest.call_record import CallRecord
from loadtest.config import LoadConfig, TrafficConfig
from loadtest.driver import Driver
from loadtest.http_client import StreamingClient
from loadtest.openai_backend import OpenAIBackend
from loadtest.program_run import RunContext
from loadtest.progress import Snapshot
from loadtest.server_facts import ServerFacts
from loadtest.workload import Arrival, build_arrivals

PROGRESS_EVERY_S = 0.5
# Datasets whose programs may go on with the answer of the call before.
CONVERSATIONS = ("sessions", "agents", "sharegpt-multi-turn", "mt-bench", "custom")


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of the arrivals is one process's: every `count`-th from `index` on."""

    index: int = 0
    count: int = 1

    def arrivals_of(self, arrivals: Iterator[Arrival]) -> Iterator[Arrival]:
        """This share of `arrivals`."""
        return itertools.islice(arrivals, self.index, None, self.count)

    def part_of(self, total: int) -> int:
        """This share of `total` users or places."""
        return total // self.count + (self.index < total % self.count)


@dataclass(frozen=True, slots=True)
class ShareResult:
    """What one process saw; `cpu_ratio` is its CPU time over the wall time of the run."""

    records: list[CallRecord]
    cpu_ratio: float


def work(config: LoadConfig, facts: ServerFacts, share: Share, parent: Connection) -> None:
    """The main function of a worker process.

    Sends "ready", receives the common start time, sends snapshots, then its ShareResult; an
    exception is sent in its place.
    """
    tune_garbage_collection()
    try:
        result = uvloop.run(_work(config, facts, share, parent))
    except Exception as error:  # noqa: BLE001 - carried to the parent, which raises it
        parent.send(error)
    else:
        parent.send(result)


def tune_garbage_collection() -> None:
    """Keep collections away from the measured path: a full one stops every stream for long."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


async def run_share(
    config: LoadConfig,
    facts: ServerFacts,
    share: Share,
    *,
    start: Callable[[], float],
    on_driver: Callable[[Driver, RunContext], None] = lambda driver, context: None,
) -> ShareResult:
    """Warm up, then run this share from the moment that `start()` names.

    `on_driver` gets the driver and its context before the start, to watch or stop it.
    """
    traffic = config.traffic
    backend = OpenAIBackend(
        config.server.backend,
        facts.model,
        ignore_eos=config.server.ignore_eos,
        continuous_usage=config.server.continuous_usage,
        keep_text=config.measure.detailed or config.workload.dataset in CONVERSATIONS,
        extra_body=config.server.extra_body,
    )
    async with StreamingClient(config.server.target, backend) as client:
        if share.index == 0 and traffic.num_warmups:
            await _warm_up(config, facts, client)
        context = _context(client, facts, traffic, share)
        driver = Driver(context)
        arrivals = share.arrivals_of(build_arrivals(config.workload, traffic))
        # The first is made now: reading a dataset must not make it late.
        arrivals = itertools.chain([first for first in [next(arrivals, None)] if first], arrivals)
        on_driver(driver, context)
        start_at = start()
        cpu_before, wall_before = time.process_time(), time.monotonic()
        users = share.part_of(traffic.num_users) if traffic.arrivals == "users" else 0
        if users or traffic.arrivals != "users":
            await driver.run(arrivals, start_at, num_users=users)
        wall_s = time.monotonic() - max(start_at, wall_before)
        cpu_ratio = (time.process_time() - cpu_before) / max(wall_s, 1e-3)
    for record in context.records:
        record.ended_at = record.ended_at or time.monotonic()
    return ShareResult([r for r in context.records if r.sent_at], cpu_ratio)


def _context(
    client: StreamingClient, facts: ServerFacts, traffic: TrafficConfig, share: Share
) -> RunContext:
    slots = None
    if traffic.max_concurrency is not None:
        slots = asyncio.Semaphore(share.part_of(traffic.max_concurrency))
    return RunContext(client, facts.writer(), traffic, time.monotonic, slots=slots)


async def _warm_up(config: LoadConfig, facts: ServerFacts, client: StreamingClient) -> None:
    """Send a few programs that are not part of the run, all at once, and forget them."""
    traffic = TrafficConfig(num_programs=config.traffic.num_warmups, seed=config.traffic.seed + 1)
    context = RunContext(client, facts.writer(), traffic, time.monotonic)
    arrivals = build_arrivals(config.workload, traffic)
    await Driver(context).run(arrivals, time.monotonic(), num_users=0)


async def _work(
    config: LoadConfig, facts: ServerFacts, share: Share, parent: Connection
) -> ShareResult:
    watching: list[asyncio.Task[None]] = []
    contexts: list[RunContext] = []

    def start() -> float:
        parent.send("ready")
        return float(parent.recv())

    def watch(driver: Driver, context: RunContext) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, driver.stop)
        contexts.append(context)
        watching.append(loop.create_task(_report(context, parent)))

    try:
        result = await run_share(config, facts, share, start=start, on_driver=watch)
        parent.send(take_snapshot(contexts[0]))
        return result
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)


async def _report(context: RunContext, parent: Connection) -> None:
    for number in itertools.count(1):
        await asyncio.sleep(PROGRESS_EVERY_S if number > 1 else PROGRESS_EVERY_S / 2)
        parent.send(take_snapshot(context))


def take_snapshot(context: RunContext) -> Snapshot:
    """The counts now, tokens of running calls included."""
    in_flight = sum(record.output_tokens for record in context.open_records.values())
    return context.progress.take(tokens_in_flight=in_flight)


def expected_end_s(traffic: TrafficConfig) -> float | None:
    """When sending ends, if that is known before the run; seconds from its start."""
    if traffic.duration_s is not None:
        return traffic.duration_s
    if traffic.arrivals != "rate" or traffic.ramp is not None or math.isinf(traffic.rate_rps):
        return None
    return (traffic.num_programs or 0) / traffic.rate_rps
