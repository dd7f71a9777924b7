"""Room in the decode pool is promised once, whoever promised it."""

import random

from cluster.handoff.decode_places import DecodePlace, DecodePlaces
from router.policies.least_loaded import LeastLoaded
from router.replica_status import GatewayAdmission, ReplicaState, ReplicaStatus
from router.request_router import RequestRouter
from router.routing_policy import RoutingRequest
from tests.cluster.dispatch.test_failover_dispatcher import after_some_tokens
from tests.cluster.handoff.test_pair_dispatcher import SILENT, Pools, pools
from tests.cluster.replica_harness import a_request, until

REQUEST = RoutingRequest("r", prompt_tokens=1, max_output_tokens=10)


def places_of(gateway_id: str, *admissions: GatewayAdmission) -> DecodePlaces:
    """A decode replica with 10 free blocks and 2 places, as that gateway sees it."""
    router = RequestRouter(LeastLoaded(random.Random(0)), gateway_id=gateway_id)
    router.update(
        ReplicaStatus(
            "d",
            role="decode",
            state=ReplicaState.ACTIVE,
            max_num_seqs=2,
            num_blocks=10,
            num_free_blocks=10,
            admissions=admissions,
        )
    )
    return DecodePlaces(router, watermark=0.0, max_in_flight=9)


async def take(places: DecodePlaces, num_blocks: int):
    return await places.take(REQUEST, num_blocks=num_blocks, avoid=frozenset(), timeout_s=0.05)


async def test_room_is_promised_until_there_is_none_and_given_back():
    places = places_of("me")
    first = await take(places, 6)
    assert isinstance(first, DecodePlace)
    assert await take(places, 6) is None
    places.give_back(first)
    assert isinstance(await take(places, 6), DecodePlace)
    places.check()


async def test_room_that_another_gateway_has_promised_is_not_promised_again():
    assert await take(places_of("me", GatewayAdmission("other", 0, 1, 6)), 6) is None
    assert isinstance(await take(places_of("me", GatewayAdmission("me", 0, 1, 6)), 6), DecodePlace)


async def test_places_that_other_gateways_have_promised_are_taken():
    assert await take(places_of("me", GatewayAdmission("other", 0, 2, 2)), 1) is None


async def test_other_gateways_see_what_is_promised_until_the_request_begins_or_leaves():
    async with pools(prefill=(SILENT,)) as found:
        feed = await found.dispatcher.open(a_request(max_tokens=40))
        await until(lambda: promised(found) == (1, 2))
        await feed.close()
        await until(lambda: promised(found) == (0, 0))
        gone = await found.dispatcher.open(a_request("other", max_tokens=1000))
        await until(lambda: promised(found) == (1, 2))
        found.core("prefill0").crash()
        await after_some_tokens(gone, 3)
        await until(lambda: promised(found) == (0, 0))
        await gone.close()
        await found.is_clean()


def promised(found: Pools) -> tuple[int, int]:
    """Places and blocks that the decode replica says are promised."""
    told = found.made.directory.links["decode0"].report.admissions
    return sum(t.num_promised for t in told), sum(t.promised_blocks for t in told)
