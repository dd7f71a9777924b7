"""A core beside an event loop: delivery, death, restart, and what counts as healthy."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from cluster.replica.engine_supervisor import (
    EngineEvents,
    EngineSupervisor,
    EngineUnhealthy,
    HealthLimits,
)
from cluster.replica.scripted_engine import EngineScript, ScriptedEngine
from replicas.step_output import StepOutput
from tests.cluster.replica_harness import CONFIG, a_request, until


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Heard:
    outputs: list[StepOutput] = field(default_factory=list)
    deliveries: int = 0
    lost: list[str] = field(default_factory=list)
    back: int = 0
    threads: set[int] = field(default_factory=set)

    def on_steps(self, outputs: list[StepOutput]) -> None:
        self.outputs += outputs
        self.deliveries += 1
        self.threads.add(threading.get_ident())

    def on_back(self) -> None:
        self.back += 1


@dataclass
class Supervised:
    supervisor: EngineSupervisor
    heard: Heard
    cores: list[ScriptedEngine]
    clock: Clock


@asynccontextmanager
async def supervised(
    script: EngineScript, *, failures: int = 0, dies_at_once: int = 0
) -> AsyncIterator[Supervised]:
    """After the first core: `failures` starts raise, then `dies_at_once` cores die in starting."""
    heard, cores, clock = Heard(), [], Clock()
    left = {"failures": failures, "dies": dies_at_once}

    def start(on_output, on_exit):
        if cores and left["failures"]:
            left["failures"] -= 1
            raise RuntimeError("no memory")
        core = ScriptedEngine(script, CONFIG, on_output=on_output, on_exit=on_exit)
        if cores and left["dies"]:
            left["dies"] -= 1
            core.crash()
            time.sleep(0.05)
        cores.append(core)
        return core

    supervisor = EngineSupervisor(
        start,
        events=EngineEvents(heard.on_steps, heard.lost.append, heard.on_back),
        clock=clock,
        limits=HealthLimits(stall_s=60.0, restart_s=300.0),
    )
    await supervisor.start()
    try:
        yield Supervised(supervisor, heard, cores, clock)
    finally:
        await supervisor.close()


async def test_outputs_arrive_in_order_on_the_loop():
    async with supervised(EngineScript()) as made:
        made.supervisor.submit(a_request(max_tokens=500))
        await until(lambda: len(made.heard.outputs) == 500)
        assert [output.stats.step for output in made.heard.outputs] == list(range(1, 501))
        assert made.heard.threads == {threading.get_ident()}


async def test_a_busy_loop_is_woken_once_for_all_that_waited():
    async with supervised(EngineScript()) as made:
        made.supervisor.submit(a_request(max_tokens=300))
        time.sleep(0.3)  # noqa: ASYNC251 - the busy loop
        await until(lambda: len(made.heard.outputs) == 300)
        assert made.heard.deliveries <= 3


async def test_a_dead_core_is_replaced_under_a_new_number():
    async with supervised(EngineScript(step_s=0.01)) as made:
        assert made.supervisor.epoch == 1
        made.supervisor.submit(a_request("lost", max_tokens=1000))
        await until(lambda: made.cores[0].num_running == 1)
        made.cores[0].crash()
        await until(lambda: made.heard.back == 1)
        assert made.cores[0].num_running == 0
        made.heard.outputs.clear()
        assert made.heard.lost == ["the scripted core was told to crash"]
        assert made.supervisor.epoch == 2
        assert made.supervisor.is_ready
        made.supervisor.submit(a_request(max_tokens=3))
        await until(lambda: len(made.heard.outputs) == 3)


async def test_a_core_that_cannot_start_is_tried_again():
    async with supervised(EngineScript(), failures=2) as made:
        made.cores[0].crash()
        await until(lambda: made.heard.back == 1)
        assert len(made.cores) == 2


async def test_a_core_that_dies_while_starting_is_tried_again():
    async with supervised(EngineScript(), dies_at_once=1) as made:
        made.cores[0].crash()
        await until(lambda: made.heard.back == 1)
        assert len(made.cores) == 3
        assert made.heard.lost == ["the scripted core was told to crash"]
        made.supervisor.check()


async def test_work_without_a_step_is_unhealthy_after_a_while():
    async with supervised(EngineScript(step_s=0.5)) as made:
        made.supervisor.submit(a_request())
        made.clock.now = 59.0
        made.supervisor.check()
        made.clock.now = 61.0
        with pytest.raises(EngineUnhealthy, match="61 s"):
            made.supervisor.check()


async def test_an_idle_engine_is_healthy_for_ever_and_work_starts_the_watch():
    async with supervised(EngineScript(step_s=0.5)) as made:
        made.clock.now = 1e6
        made.supervisor.check()
        made.supervisor.submit(a_request())
        made.supervisor.check()
        assert made.supervisor.last_step_age_s == 0.0


async def test_a_restart_is_healthy_until_its_deadline():
    async with supervised(EngineScript(), failures=1000) as made:
        made.cores[0].crash()
        await until(lambda: not made.supervisor.is_ready)
        made.clock.now = 299.0
        made.supervisor.check()
        made.clock.now = 301.0
        with pytest.raises(EngineUnhealthy, match="no engine core"):
            made.supervisor.check()


async def test_closing_while_a_core_restarts_ends_the_attempt():
    async with supervised(EngineScript(), failures=1000) as made:
        made.cores[0].crash()
        await until(lambda: not made.supervisor.is_ready)
        await asyncio.wait_for(made.supervisor.close(), 1.0)
