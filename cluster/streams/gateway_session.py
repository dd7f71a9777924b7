"""One gateway as a replica sees it: what waits for it, and whether it is there to take it."""

import asyncio
from collections.abc import Callable

from cluster.streams.token_outbox import TokenOutbox
from cluster.wire import token_stream_pb2 as wire


class GatewaySession:
    """Survives breaks of the stream for `grace_s`; then `on_lost` is called, once.

    A gateway that attaches again while its old stream still seems open takes over from it: the
    old one was broken in a way this side has not noticed.
    metric_report: what the gateway said last of its own figures.
    hears_kv_events: whether it asked what the prefix cache can find.
    """

    def __init__(self, gateway_id: str, *, grace_s: float, on_lost: Callable[[str], None]) -> None:
        self.gateway_id = gateway_id
        self.outbox = TokenOutbox()
        self.wake = asyncio.Event()
        self.metric_report: wire.MetricReport | None = None
        self.hears_kv_events = False
        self._grace_s = grace_s
        self._on_lost = on_lost
        self._visit = 0
        self._is_attached = False
        self._watches_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_attached(self) -> bool:
        """Whether a stream is open now."""
        return self._is_attached

    def attach(self) -> int:
        """A stream opened; returns its number, which a later one makes stale."""
        self._stop_timer()
        self._visit += 1
        self._is_attached = True
        self.wake.set()
        return self._visit

    def is_current(self, visit: int) -> bool:
        """Whether that stream is still the one to write to."""
        return self._is_attached and visit == self._visit

    def detach(self, visit: int) -> None:
        """That stream ended; unless another came, the gateway has `grace_s` to come back."""
        if visit != self._visit or not self._is_attached:
            return
        self._is_attached = False
        self._timer = asyncio.get_running_loop().call_later(
            self._grace_s, self._on_lost, self.gateway_id
        )

    def watch(self, seconds: float) -> None:
        """Somebody watches at the gateway for so long from now on."""
        self._watches_until = asyncio.get_running_loop().time() + seconds

    @property
    def is_watching(self) -> bool:
        """Whether views would be of use there."""
        return asyncio.get_running_loop().time() < self._watches_until

    def close(self) -> None:
        """Forget the gateway without calling `on_lost`."""
        self._stop_timer()
        self._is_attached = False
        self.wake.set()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
