"""One prefill and two decode replicas that share requests: what dies, nobody loses a token."""

import httpx
import pytest

from tests.chaos.faults import (
    CORE_KILLED,
    DECODE_KILLED,
    GATEWAY_KILLED,
    HEAD_KILLED,
    PARTITION,
    PREFILL_KILLED,
    REPLICA_HANGS,
    STORE_KILLED,
    Fault,
)
from tests.chaos.rounds import Tally, run_rounds
from tests.chaos.service import Layout, Service, figure

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.asyncio(loop_scope="module"),
]

LAYOUT = Layout(num_prefill=1, num_decode=2)
FAULTS = (
    PREFILL_KILLED,
    DECODE_KILLED,
    CORE_KILLED,
    GATEWAY_KILLED,
    STORE_KILLED,
    HEAD_KILLED,
    REPLICA_HANGS,
    PARTITION,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_every_client_gets_its_own_tokens_and_nothing_is_left(
    fault: Fault, service: Service, rounds: int, tallies: dict[str, Tally]
):
    await run_rounds(fault, service, rounds, tallies.setdefault(f"pools/{fault.name}", Tally()))


async def test_prompts_were_computed_in_one_pool_and_adopted_in_the_other(service: Service):
    async with httpx.AsyncClient(base_url=service.url, timeout=30.0) as client:
        assert await figure(client, "pagoda:handoff_results_total", 'outcome="adopted"') > 0
