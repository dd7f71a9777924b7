"""Measures how fast blocks really move, which swap-or-recompute decides by (lecture 10, ex. 4)."""

import math
import threading
from collections.abc import Callable


class BandwidthMeter:
    """Bytes per second of transfer, recent transfers counting more; safe from any thread.

    A transfer's weight halves every half_life_s. The mean is of bytes over seconds, so a large
    transfer says more than a small one, whose time is mostly the round trip.
    """

    def __init__(self, *, clock: Callable[[], float], half_life_s: float = 30.0) -> None:
        if not half_life_s > 0.0:
            raise ValueError(f"half_life_s={half_life_s}: expected more than 0 seconds")
        self._clock = clock
        self._decay_per_s = math.log(2.0) / half_life_s
        self._lock = threading.Lock()
        self._updated_at = clock()
        self._bytes = 0.0
        self._seconds = 0.0

    def record(self, num_bytes: int, *, seconds: float) -> None:
        """One transfer that took `seconds` of wall time; one of no bytes says nothing."""
        if num_bytes <= 0 or seconds <= 0.0:
            return
        with self._lock:
            now = self._clock()
            kept = math.exp(-self._decay_per_s * (now - self._updated_at))
            self._updated_at = now
            self._bytes = self._bytes * kept + num_bytes
            self._seconds = self._seconds * kept + seconds

    @property
    def bytes_per_s(self) -> float | None:
        """The measured speed, or None before the first transfer."""
        with self._lock:
            return self._bytes / self._seconds if self._seconds else None


class LatencyMeter:
    """Mean seconds of a round trip without a payload, recent ones counting more."""

    def __init__(self, *, weight: float = 0.1) -> None:
        if not 0.0 < weight <= 1.0:
            raise ValueError(f"weight={weight}: expected a share in (0, 1]")
        self._weight = weight
        self._lock = threading.Lock()
        self._mean_s: float | None = None

    def record(self, seconds: float) -> None:
        """One round trip."""
        with self._lock:
            if self._mean_s is None:
                self._mean_s = seconds
            else:
                self._mean_s += self._weight * (seconds - self._mean_s)

    @property
    def mean_s(self) -> float | None:
        """The measured round trip, or None before the first."""
        with self._lock:
            return self._mean_s
