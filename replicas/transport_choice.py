"""Chooses the way that the blocks of a hand-off take between two replicas, by what was measured."""

from collections.abc import Callable, Sequence

from kvstore.bandwidth_meter import BandwidthMeter
from kvstore.block_transport import BlockTransport, Delivery, Source, TransportName

# A way that did not work is not tried first again for so long, nor is a speed believed for longer.
FORGET_AFTER_S = 60.0
_MOST_PAIRS = 1024

_UNKNOWN, _MEASURED, _FAILED = range(3)


def offering(transports: Sequence[BlockTransport]) -> list[BlockTransport]:
    """Those to offer blocks by: direct ways, where there are any.

    They cost nothing to offer, while through the store every byte goes twice.
    """
    usable = [transport for transport in transports if transport.address]
    return [transport for transport in usable if transport.name != "store"] or usable


class TransportChoice:
    """What a reading end has measured of each (offering end, way). clock: monotonic seconds."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._speeds: dict[tuple[str, str], BandwidthMeter] = {}
        self._noted_at: dict[tuple[str, str], float] = {}
        self._failed_at: dict[tuple[str, str], float] = {}

    @property
    def num_known(self) -> int:
        """Ways that something is remembered of."""
        return len(self._speeds) + len(self._failed_at)

    def rank(self, source: Source, name: TransportName) -> tuple[int, float]:
        """Lower is tried first: ways not known, then the fastest, then those that just failed."""
        way = (source.address, name)
        now = self._clock()
        if now - self._failed_at.get(way, -FORGET_AFTER_S) < FORGET_AFTER_S:
            return (_FAILED, 0.0)
        if now - self._noted_at.get(way, -FORGET_AFTER_S) >= FORGET_AFTER_S:
            return (_UNKNOWN, 0.0)
        return (_MEASURED, -(self._speeds[way].bytes_per_s or 0.0))

    def note(self, source: Source, name: TransportName, delivery: Delivery, seconds: float) -> None:
        """A way was used, and brought something or not."""
        way = (source.address, name)
        if not delivery.num_whole and delivery.ended_by not in ("absent", "corrupt"):
            self._make_room()
            self._failed_at[way] = self._clock()
            return
        self._failed_at.pop(way, None)
        if not delivery.num_bytes:
            return
        if way not in self._speeds:
            self._make_room()
            self._speeds[way] = BandwidthMeter(clock=self._clock)
        self._speeds[way].record(delivery.num_bytes, seconds=seconds)
        self._noted_at[way] = self._clock()

    def _make_room(self) -> None:
        """Replicas come and go under new addresses: those used longest ago are forgotten."""
        if len(self._speeds) >= _MOST_PAIRS:
            oldest = min(self._noted_at, key=lambda way: self._noted_at[way])
            del self._speeds[oldest], self._noted_at[oldest]
        if len(self._failed_at) >= _MOST_PAIRS:
            self._failed_at.clear()
