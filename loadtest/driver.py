"""Sends programs on time in an open loop, or one after another for each user in a closed loop."""

import asyncio
import random
from collections import deque
from collections.abc import Iterator

from loadtest.program_run import TIMER_GRAIN_S, ProgramRun, RunContext
from loadtest.workload import Arrival

LOOK_AHEAD = 64
# Preparing gives the loop back after each such turn, and stops when a request is due within the
# slack: sending comes first.
PREPARE_TURN_S = 0.001
PREPARE_SLACK_S = 0.010


class Driver:
    """Runs one process's share of the arrivals; results gather in `context.records`.

    The open loop never waits for the server: a request is a task of its own, started when due,
    and only --max-concurrency (if given) holds it back, which its record then says.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._fault: BaseException | None = None

    def stop(self) -> None:
        """Send nothing more and cut off what runs; `run` then returns what there is."""
        self._stopping.set()

    async def run(self, arrivals: Iterator[Arrival], start_at: float, *, num_users: int) -> None:
        """Send all `arrivals`, the first at `start_at`, and wait for the ends within the grace.

        A closed loop of `num_users` in this process; 0 makes it an open loop.
        """
        sending = asyncio.create_task(
            self._closed_loop(arrivals, start_at, num_users)
            if num_users
            else self._open_loop(arrivals, start_at)
        )
        stopping = asyncio.create_task(self._wait_for_stop())
        try:
            await asyncio.wait(
                {sending, stopping},
                timeout=self._sending_time_left_s(start_at, num_users),
                return_when=asyncio.FIRST_COMPLETED,
            )
            # Users whose time is over start nothing more; their open calls are tasks of their own.
            await _cancel_all({sending} if not sending.done() else set())
            await self._drain(stopping)
        finally:
            await _cancel_all({sending, stopping, *self._tasks})
        if not sending.cancelled():
            sending.result()
        if self._fault is not None:
            raise self._fault

    async def _wait_for_stop(self) -> None:
        await self._stopping.wait()

    def _sending_time_left_s(self, start_at: float, num_users: int) -> float | None:
        # An open loop ends by itself; users are waiting for answers when their time is over.
        duration_s = self._context.traffic.duration_s
        if not num_users or duration_s is None:
            return None
        return start_at + duration_s - self._context.clock()

    async def _open_loop(self, arrivals: Iterator[Arrival], start_at: float) -> None:
        ready: deque[tuple[float, ProgramRun]] = deque()
        while await self._look_ahead(ready, arrivals, start_at):
            await self._context.sleep_until(ready[0][0])
            now = self._context.clock()
            while ready and ready[0][0] <= now + TIMER_GRAIN_S:
                due_at, run = ready.popleft()
                self._start(run, due_at)
            # Started tasks send in the loop's next turn.
            await asyncio.sleep(0)

    async def _look_ahead(
        self, ready: deque[tuple[float, ProgramRun]], arrivals: Iterator[Arrival], start_at: float
    ) -> bool:
        """Prepare what comes next, as far as there is time; False when nothing is left.

        A turn of a busy loop takes milliseconds, so it is given away only while nothing is due:
        a driver that is behind prepares and sends at once until it has caught up.
        """
        turn_ends_at = self._context.clock() + PREPARE_TURN_S
        while len(ready) < LOOK_AHEAD:
            now = self._context.clock()
            if ready and now > turn_ends_at:
                if ready[0][0] - now <= PREPARE_SLACK_S:
                    break
                await asyncio.sleep(0)
                turn_ends_at = self._context.clock() + PREPARE_TURN_S
            arrival = next(arrivals, None)
            if arrival is None:
                break
            ready.append((start_at + arrival.at_s, self._prepared(arrival)))
        return bool(ready)

    async def _closed_loop(
        self, arrivals: Iterator[Arrival], start_at: float, num_users: int
    ) -> None:
        async with asyncio.TaskGroup() as group:
            for user in range(num_users):
                group.create_task(self._serve_user(user, arrivals, start_at))

    async def _serve_user(self, user: int, arrivals: Iterator[Arrival], start_at: float) -> None:
        context = self._context
        traffic = context.traffic
        rng = random.Random(f"user {traffic.seed} {user}")
        due_at = start_at
        for arrival in arrivals:
            run = self._prepared(arrival)
            await context.sleep_until(due_at)
            # A task of its own, so that the grace at the end treats it as in an open loop.
            await asyncio.wait({self._start(run, max(due_at, start_at))})
            due_at = context.clock() + traffic.think_time_s.draw(rng)

    def _prepared(self, arrival: Arrival) -> ProgramRun:
        run = ProgramRun(arrival.program, f"r{arrival.index}", self._context)
        run.prepare()
        return run

    def _start(self, run: ProgramRun, due_at: float) -> asyncio.Task[None]:
        task = asyncio.create_task(run.run(due_at))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            # Failures of the server are outcomes; an exception here is a fault of the driver.
            self._fault = self._fault or fault
            self.stop()

    async def _drain(self, stopping: asyncio.Task[None]) -> None:
        """Wait for running programs until the grace is over or a stop is asked for."""
        grace_s = self._context.traffic.grace_s
        deadline = self._context.clock() + grace_s
        while self._tasks and not self._stopping.is_set():
            left_s = deadline - self._context.clock()
            if left_s <= 0:
                return
            await asyncio.wait(
                {*self._tasks, stopping},
                timeout=None if grace_s == float("inf") else left_s,
                return_when=asyncio.FIRST_COMPLETED,
            )


async def _cancel_all(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
