"""Remembers what each lease pins, so that one heartbeat renews and one release frees it all.

A lease ends by itself when its holder stops renewing it; a lookup that pins does not renew what
others hold (survey, complaint 13: existence checks that renew leases leave nothing to evict).
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvstore.block_hash import BlockHash


@dataclass(slots=True)
class _Lease:
    ends_at: float
    names: dict[BlockHash, None] = field(default_factory=dict)


class LeaseTable:
    """Leases by id, the one that ends first in front; safe from any thread."""

    def __init__(self, *, ttl_s: float, clock: Callable[[], float]) -> None:
        if not ttl_s > 0.0:
            raise ValueError(f"lease_ttl_s={ttl_s}: expected more than 0 seconds")
        self.ttl_s = ttl_s
        self._clock = clock
        self._lock = threading.Lock()
        self._leases: OrderedDict[str, _Lease] = OrderedDict()

    def hold(self, lease: str, names: Iterable[BlockHash]) -> None:
        """Put names under a lease and let it last ttl_s from now."""
        with self._lock:
            held = self._leases.setdefault(lease, _Lease(0.0))
            held.names.update(dict.fromkeys(names))
            held.ends_at = self._clock() + self.ttl_s
            self._leases.move_to_end(lease)

    def names_of(self, lease: str) -> tuple[BlockHash, ...]:
        """What a live lease holds, oldest first; nothing if it has ended."""
        with self._lock:
            held = self._leases.get(lease)
            is_live = held is not None and held.ends_at > self._clock()
            return tuple(held.names) if held is not None and is_live else ()

    def drop(self, lease: str) -> tuple[BlockHash, ...]:
        """Forget a lease; what it held."""
        with self._lock:
            held = self._leases.pop(lease, None)
            return tuple(held.names) if held is not None else ()

    def expire(self) -> int:
        """Forget the leases that have ended; how many. Costs what it forgets."""
        num_ended = 0
        with self._lock:
            now = self._clock()
            # Every hold moves a lease to the end and all last equally long.
            while self._leases and next(iter(self._leases.values())).ends_at <= now:
                self._leases.popitem(last=False)
                num_ended += 1
        return num_ended

    def __len__(self) -> int:
        with self._lock:
            return len(self._leases)
