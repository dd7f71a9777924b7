"""Room that gateways have promised here to requests still on their way, so that each sees the rest.

A gateway promises room in the decode pool before it has a prompt computed elsewhere. Its own
promises it knows; those of others it can only be told by who they were made for.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from router.replica_status import GatewayAdmission


@dataclass(frozen=True, slots=True)
class _Promise:
    gateway_id: str
    num_blocks: int
    ends_at: float


class HandoffPromises:
    """One place and some blocks for each request that is expected. clock: seconds, monotonic."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._promises: dict[str, _Promise] = {}

    def add(self, gateway_id: str, request_id: str, *, num_blocks: int, deadline_s: float) -> None:
        """That request is expected, for so long at most."""
        ends_at = self._clock() + deadline_s
        self._promises[request_id] = _Promise(gateway_id, num_blocks, ends_at)

    def end(self, request_id: str) -> None:
        """The request has come, and is counted itself, or it will not. Safe for any other."""
        self._promises.pop(request_id, None)

    def forget_gateway(self, gateway_id: str) -> None:
        """That gateway is gone, and its requests do not come."""
        for request_id, promise in list(self._promises.items()):
            if promise.gateway_id == gateway_id:
                del self._promises[request_id]

    def added_to(self, admissions: Iterable[GatewayAdmission]) -> tuple[GatewayAdmission, ...]:
        """What each gateway has had admitted, with what it has promised."""
        found = {each.gateway_id: each for each in admissions}
        if not self._promises:
            return tuple(found.values())
        places: Counter[str] = Counter()
        blocks: Counter[str] = Counter()
        now = self._clock()
        for request_id, promise in list(self._promises.items()):
            if now >= promise.ends_at:
                del self._promises[request_id]
                continue
            places[promise.gateway_id] += 1
            blocks[promise.gateway_id] += promise.num_blocks
        for gateway_id, num_promised in places.items():
            admitted = found.get(gateway_id, GatewayAdmission(gateway_id, 0))
            found[gateway_id] = replace(
                admitted, num_promised=num_promised, promised_blocks=blocks[gateway_id]
            )
        return tuple(found.values())
