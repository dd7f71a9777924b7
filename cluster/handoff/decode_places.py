"""Waits, in the order of arrival, for a decode replica that has room for a request's blocks."""

import asyncio
from dataclasses import dataclass

from router.decode_credits import Credit, DecodeCredits
from router.pool_view import decode_rooms
from router.replica_status import DECODERS
from router.request_router import RequestRouter, Reservation
from router.routing_policy import RoutingRequest, Unmeetable

# Statuses come with every step and heartbeat; between two looks a few may have come.
_LOOK_INTERVAL_S = 0.02


@dataclass(frozen=True, slots=True)
class DecodePlace:
    """Room that is promised on one decode replica; given back by `DecodePlaces.give_back`."""

    reservation: Reservation
    credit: Credit

    @property
    def replica_id(self) -> str:
        """Where it is."""
        return self.reservation.replica_id


class DecodePlaces:
    """Promises of one gateway. What others promise shows in statuses a moment later; two gateways
    that promise the same room within it fill it once, and the later request waits in the engine's
    line.

    watermark: share of a replica's blocks that is never promised. max_in_flight: most promises at
    once for one replica.
    """

    def __init__(self, router: RequestRouter, *, watermark: float, max_in_flight: int) -> None:
        self._router = router
        self._watermark = watermark
        self._credits = DecodeCredits(max_in_flight=max_in_flight)
        # Fair: who waits longest is served first, so a large request is not starved by small ones.
        self._turn = asyncio.Lock()

    @property
    def num_held(self) -> int:
        """Promises that were made and neither kept nor given back."""
        return self._credits.num_held

    async def take(
        self, request: RoutingRequest, *, num_blocks: int, avoid: frozenset[str], timeout_s: float
    ) -> DecodePlace | Unmeetable | None:
        """Room for so many blocks; None if there was none in time.

        Unmeetable when the request states latencies that no replica with room would keep.
        """
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                while True:
                    if (place := self._look(request, num_blocks, avoid)) is not None:
                        return place
                    await asyncio.sleep(_LOOK_INTERVAL_S)
        except TimeoutError:
            return None

    def give_back(self, place: DecodePlace) -> None:
        """The replica counts the request itself, or it will not come. Safe to call twice."""
        self._router.release(place.reservation)
        self._credits.release(place.credit)

    def check(self) -> None:
        """What is promised is the sum of the promises."""
        self._credits.check()

    def _look(
        self, request: RoutingRequest, num_blocks: int, avoid: frozenset[str]
    ) -> DecodePlace | Unmeetable | None:
        statuses = self._router.statuses.values()
        found = decode_rooms(
            statuses, watermark=self._watermark, gateway_id=self._router.gateway_id
        )
        rooms = {room.replica_id: room for room in found}
        roomy = {k for k, room in rooms.items() if self._credits.has_room(room, num_blocks)}
        others = frozenset(self._router.statuses.keys() - roomy) | avoid
        if not roomy - avoid:
            return None
        choice = self._router.choose(request, exclude=others, roles=DECODERS)
        if choice is None or isinstance(choice, Unmeetable):
            return choice
        credit = self._credits.reserve(request.request_id, num_blocks, [rooms[choice.replica_id]])
        assert credit is not None, choice.replica_id
        return DecodePlace(choice, credit)
