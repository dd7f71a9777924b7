"""Measures how long a block that nobody needs can still be found before its place is reused."""

from collections.abc import Callable

from kvstore.bandwidth_meter import BandwidthMeter

# Shorter spans say little: many steps are taken together.
_MIN_SPAN_S = 0.5


class Residence:
    """Rates at which device blocks and host slots are taken, idle time included.

    clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tokens = BandwidthMeter(clock=clock)
        self._copies = BandwidthMeter(clock=clock)
        self._since = clock()
        self._num_tokens = 0
        self._num_copied_out = 0

    def note_step(self, *, num_tokens: int, num_copied_out: int) -> None:
        """One step computed so many tokens and copied so many blocks to host memory."""
        self._num_tokens += num_tokens
        self._num_copied_out += num_copied_out
        span_s = self._clock() - self._since
        if span_s < _MIN_SPAN_S:
            return
        self._since += span_s
        self._tokens.record(self._num_tokens, seconds=span_s)
        # A span without copies counts too: as one copy, since none would count as no span.
        self._copies.record(max(1, self._num_copied_out), seconds=span_s)
        self._num_tokens = self._num_copied_out = 0

    def device_s(self, num_free_tokens: int) -> float:
        """How long free blocks for so many tokens last; for ever before the first measurement."""
        rate = self._tokens.bytes_per_s
        return num_free_tokens / rate if rate else float("inf")

    def host_s(self, num_slots: int) -> float:
        """How long so many slots last; for ever before the first measurement."""
        rate = self._copies.bytes_per_s
        return num_slots / rate if rate else float("inf")
