"""Keeps an engine core running beside an event loop: starts it, restarts it, knows if it works.

Health is progress, not liveness (DESIGN 6): a core that has work must make steps, and one that
died must be back within a deadline; until then the replica only refuses, it is not replaced.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from replicas.engine_info import EngineInfo
from replicas.request import EngineRequest
from replicas.step_output import StepOutput

log = logging.getLogger(__name__)

FIRST_RESTART_DELAY_S = 0.1
LAST_RESTART_DELAY_S = 30.0


class EngineHandle(Protocol):
    """The part of replicas.engine_client.EngineClient that a replica needs, without its torch."""

    @property
    def info(self) -> EngineInfo:
        """What the engine turned out to be."""
        ...

    def submit(self, request: EngineRequest) -> None:
        """Serve a request."""
        ...

    def prefetch(self, request: EngineRequest) -> None:
        """Begin to fetch the blocks of a request that will be handed over here."""
        ...

    def cancel(self, request_id: str, attempt: int) -> None:
        """End a request whose client left."""
        ...

    def finish_choice(self, request_id: str, attempt: int, choice: int) -> None:
        """End one choice normally, for a stop string in its text."""
        ...

    def watch(self, seconds: float) -> None:
        """Let outputs carry views of what happens, for so long from now on."""
        ...

    def close(self) -> None:
        """End the engine; no callback comes after this returns."""
        ...


StartEngine = Callable[[Callable[[StepOutput], None], Callable[[str], None]], EngineHandle]


class EngineUnhealthy(RuntimeError):
    """The engine makes no progress; the message says since when."""


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """stall_s: longest time with work and no step. restart_s: longest time without a core."""

    stall_s: float = 60.0
    restart_s: float = 300.0


@dataclass(frozen=True, slots=True)
class EngineEvents:
    """Whom the supervisor tells, always on the event loop.

    on_steps: outputs of the current core in order, several if the loop was busy.
    on_core_lost: the core died; called once, before the next one is started.
    on_core_back: a new core can take requests.
    """

    on_steps: Callable[[list[StepOutput]], None]
    on_core_lost: Callable[[str], None]
    on_core_back: Callable[[], None]


class EngineSupervisor:
    """One engine core after another, each with a number: its epoch.

    start: builds a core and blocks until it is ready; called in a worker thread.
    """

    def __init__(
        self,
        start: StartEngine,
        *,
        events: EngineEvents,
        clock: Callable[[], float],
        limits: HealthLimits,
    ) -> None:
        self._start = start
        self._events = events
        self._clock = clock
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._engine: EngineHandle | None = None
        self._inbox: deque[tuple[int, StepOutput]] = deque()
        self._is_woken = False
        self._dead_epoch = 0
        self._restarting: asyncio.Task[None] | None = None
        self._lost_at: float | None = None
        self._last_step_at = clock()
        self._work_since: float | None = None
        self._is_closed = False
        # A thread of its own: a start takes long, and closing does not wait for it.
        self._starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-starter")
        self.epoch = 0

    async def start(self) -> EngineInfo:
        """Start the first core; what the engine raises if it cannot be built."""
        self._engine = await self._start_core()
        return self._engine.info

    @property
    def is_ready(self) -> bool:
        """Whether requests can be submitted now."""
        return self._engine is not None

    @property
    def info(self) -> EngineInfo:
        """What the running core turned out to be; only while `is_ready`."""
        assert self._engine is not None
        return self._engine.info

    @property
    def last_step_age_s(self) -> float:
        """Time since the last step, or since work came in if that is shorter."""
        since = self._last_step_at
        if self._work_since is not None:
            since = max(since, self._work_since)
        return self._clock() - since

    def submit(self, request: EngineRequest) -> None:
        """Hand a request to the core; only while `is_ready`."""
        assert self._engine is not None
        if self._work_since is None:
            self._work_since = self._clock()
        self._engine.submit(request)

    def prefetch(self, request: EngineRequest) -> None:
        """Begin to fetch the blocks of a request to come, if there is a core to do it."""
        if self._engine is not None:
            self._engine.prefetch(request)

    def cancel(self, request_id: str, attempt: int) -> None:
        """End a request, if there is a core that could still have it."""
        if self._engine is not None:
            self._engine.cancel(request_id, attempt)

    def finish_choice(self, request_id: str, attempt: int, choice: int) -> None:
        """End one choice normally, if there is a core that could still have it."""
        if self._engine is not None:
            self._engine.finish_choice(request_id, attempt, choice)

    def watch(self, seconds: float) -> None:
        """Let steps carry views of what happens, if there is a core to send any."""
        if self._engine is not None:
            self._engine.watch(seconds)

    def on_idle(self) -> None:
        """No request is open any more."""
        self._work_since = None

    def check(self) -> None:
        """Raise EngineUnhealthy if work does not advance or the core does not come back."""
        if self._lost_at is not None:
            gone_s = self._clock() - self._lost_at
            if gone_s > self._limits.restart_s:
                raise EngineUnhealthy(f"no engine core for {gone_s:.0f} s")
            return
        if self._work_since is not None and self.last_step_age_s > self._limits.stall_s:
            raise EngineUnhealthy(f"work but no step for {self.last_step_age_s:.0f} s")

    async def close(self) -> None:
        """End the core and any attempt to start one."""
        self._is_closed = True
        if self._restarting is not None:
            self._restarting.cancel()
            with suppress(asyncio.CancelledError):
                await self._restarting
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engine.close)
        self._starter.shutdown(wait=False)

    async def _start_core(self) -> EngineHandle:
        self.epoch += 1
        epoch = self.epoch
        engine = await self._loop.run_in_executor(
            self._starter,
            self._start,
            lambda output: self._take_output(epoch, output),
            lambda message: self._post(self._lose_core, epoch, message),
        )
        if self._dead_epoch == epoch:
            await asyncio.to_thread(engine.close)
            raise EngineUnhealthy("the engine core died as soon as it was ready")
        info = engine.info
        log.info(
            "engine core ready epoch=%d num_blocks=%d max_model_len=%d kernels=%s",
            epoch,
            info.num_blocks,
            info.max_model_len,
            info.kernels,
        )
        self._last_step_at = self._clock()
        return engine

    def _take_output(self, epoch: int, output: StepOutput) -> None:
        """Called from the engine's reader thread: wake the loop once for all that is waiting."""
        # Append first: `_deliver` clears the flag before it drains, so nothing is left behind.
        self._inbox.append((epoch, output))
        if not self._is_woken:
            self._is_woken = True
            self._post(self._deliver)

    def _deliver(self) -> None:
        self._is_woken = False
        outputs: list[StepOutput] = []
        while self._inbox:
            epoch, output = self._inbox.popleft()
            if epoch == self.epoch and self._lost_at is None:
                outputs.append(output)
        if outputs:
            self._last_step_at = self._clock()
            self._events.on_steps(outputs)

    def _lose_core(self, epoch: int, message: str) -> None:
        if epoch != self.epoch or self._is_closed:
            return
        self._dead_epoch = epoch
        if self._engine is None:
            return
        self._deliver()
        log.error("engine core lost epoch=%d message=%s", epoch, message)
        dead, self._engine = self._engine, None
        self._lost_at = self._clock()
        self._work_since = None
        self._events.on_core_lost(message)
        self._restarting = self._loop.create_task(self._restart(dead))

    async def _restart(self, dead: EngineHandle | None) -> None:
        if dead is not None:
            await asyncio.to_thread(dead.close)
        delay_s = FIRST_RESTART_DELAY_S
        while True:
            try:
                self._engine = await self._start_core()
            except Exception:  # whatever keeps a core from starting may pass; health has a deadline
                log.exception("engine core did not start, retrying delay_s=%.1f", delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, LAST_RESTART_DELAY_S)
            else:
                self._lost_at = None
                self._events.on_core_back()
                return

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process is ending
            self._loop.call_soon_threadsafe(callback, *arguments)
