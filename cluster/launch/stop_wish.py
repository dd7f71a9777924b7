"""Turns the first SIGTERM or SIGINT into an exception where the main thread is, and later ones off.

A start has many places that wait; an exception unwinds all of them through the same clean-up.
"""

import signal
from types import FrameType


class StopRequested(BaseException):
    """Somebody asked the service to stop; no error, so `except Exception` lets it pass."""


def raise_on_stop_signals() -> None:
    """From now on the first signal raises StopRequested in the main thread, and more do nothing.

    Call it again after a library has put its own handlers in (Ray does).
    """
    signal.signal(signal.SIGTERM, _raise_once)
    signal.signal(signal.SIGINT, _raise_once)


def _raise_once(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise StopRequested
