"""Two replicas that take whole requests: right tokens, once, in order; nothing is left."""

import pytest

from tests.chaos.faults import (
    CORE_KILLED,
    GATEWAY_KILLED,
    HEAD_KILLED,
    PARTITION,
    REPLICA_HANGS,
    REPLICA_KILLED,
    STORE_KILLED,
    Fault,
)
from tests.chaos.rounds import Tally, run_rounds
from tests.chaos.service import Layout, Service

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.asyncio(loop_scope="module"),
]

LAYOUT = Layout(num_mixed=2)
FAULTS = (
    CORE_KILLED,
    REPLICA_KILLED,
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
    await run_rounds(fault, service, rounds, tallies.setdefault(f"mixed/{fault.name}", Tally()))
