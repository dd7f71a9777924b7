"""What can happen to a part of the service: how it is done and put right again."""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import psutil
import pytest

from tests.chaos.service import Service

Happen = Callable[[Service, random.Random], Awaitable[None]]

HANG_S = 10.0
PARTITION_S = 5.0
STORE_GONE_S = 2.0
HEAD_GONE_S = 3.0


def _kill(deployment: str) -> Happen:
    """Kill a replica of that deployment; of any if it has no name."""

    async def kill(service: Service, rng: random.Random) -> None:
        of = service.replicas_of(deployment) if deployment else service.replicas
        rng.choice(of).kill()

    return kill


async def _kill_core(service: Service, rng: random.Random) -> None:
    rng.choice(service.cores).kill()


async def _kill_gateway(service: Service, rng: random.Random) -> None:
    rng.choice(service.gateways).kill()


async def _kill_store(service: Service, _rng: random.Random) -> None:
    service.store.kill()
    await asyncio.sleep(STORE_GONE_S)
    await asyncio.to_thread(service.store.start)


async def _kill_head(service: Service, _rng: random.Random) -> None:
    await asyncio.to_thread(service.head.kill)
    await asyncio.sleep(HEAD_GONE_S)
    service.head.start()


async def _hang_replica(service: Service, rng: random.Random) -> None:
    actor = rng.choice(service.replicas)
    stopped = [actor, *actor.children(recursive=True)]
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(HANG_S)
    finally:
        for process in stopped:
            _resume(process)


def _resume(process: psutil.Process) -> None:
    try:
        process.send_signal(signal.SIGCONT)
    except psutil.NoSuchProcess:
        # Its health check gave it up meanwhile.
        return


async def _partition(service: Service, _rng: random.Random) -> None:
    if service.far is None:
        pytest.skip(f"no network namespaces: {service.why_not_far}")
    await asyncio.to_thread(service.far.cut)
    await asyncio.sleep(PARTITION_S)
    await asyncio.to_thread(service.far.mend)


def _renew_far_node(service: Service) -> None:
    # Ray declares a node dead that it has not heard of for 4.4 s, and it ends itself on return.
    service.renew_far_node()


def _nothing_to_repair(_service: Service) -> None:
    return


@dataclass(frozen=True, slots=True)
class Fault:
    """happen: does it, and returns when it is over. repair: brings back what nobody else would.

    longest_pause_s: of any client, on a machine that is busy with other things, too.
    kills_gateway: clients of one may be cut off. keeps_processes: every gateway and replica must
    be the same process afterwards.
    """

    name: str
    happen: Happen
    repair: Callable[[Service], None] = _nothing_to_repair
    longest_pause_s: float = 20.0
    kills_gateway: bool = False
    keeps_processes: bool = False


CORE_KILLED = Fault("core_killed", _kill_core)
REPLICA_KILLED = Fault("replica_killed", _kill(""))
PREFILL_KILLED = Fault("prefill_replica_killed", _kill("prefill"))
DECODE_KILLED = Fault("decode_replica_killed", _kill("decode"))
GATEWAY_KILLED = Fault("gateway_killed", _kill_gateway, kills_gateway=True)
STORE_KILLED = Fault("store_killed", _kill_store, keeps_processes=True)
HEAD_KILLED = Fault("head_killed", _kill_head, keeps_processes=True)
REPLICA_HANGS = Fault("replica_hangs", _hang_replica, longest_pause_s=HANG_S)
PARTITION = Fault("partition", _partition, _renew_far_node, kills_gateway=True)
