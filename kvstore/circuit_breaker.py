"""Keeps callers away from a store that fails, and finds out now and then whether it is back.

Closed, every call goes through. After some failures in a row it opens, and no call goes through
until a pause has passed; then one caller at a time may try. The pause doubles with each try that
fails and is drawn at random, so that replicas that lost the same store do not come back to it in
one moment (survey, complaint 29).
"""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """failures_to_open: in a row. first_pause_s, longest_pause_s: before jitter of up to half."""

    failures_to_open: int = 3
    first_pause_s: float = 0.5
    longest_pause_s: float = 15.0


class CircuitBreaker:
    """Safe from any thread; decides and does nothing else."""

    def __init__(
        self, limits: BreakerLimits, *, clock: Callable[[], float], random_source: random.Random
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._random = random_source
        self._lock = threading.Lock()
        self._num_failures = 0
        self._num_pauses = 0
        self._may_try_at: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether calls are kept away, but for the one that tries."""
        return self._may_try_at is not None

    def allows(self) -> bool:
        """Whether a call may go through now; its outcome must then be told."""
        with self._lock:
            if self._may_try_at is None:
                return True
            if self._clock() < self._may_try_at:
                return False
            # One caller per pause, whether or not this one ever tells.
            self._may_try_at = self._clock() + self._pause_s()
            return True

    def succeeded(self) -> bool:
        """A call got its answer; True if that closed the breaker."""
        with self._lock:
            was_open = self._may_try_at is not None
            self._num_failures = self._num_pauses = 0
            self._may_try_at = None
            return was_open

    def failed(self) -> bool:
        """A call got none; True if that opened the breaker."""
        with self._lock:
            self._num_failures += 1
            # While it is open, `allows` has set the next try already.
            is_open = self._may_try_at is not None
            if is_open or self._num_failures < self._limits.failures_to_open:
                return False
            self._may_try_at = self._clock() + self._pause_s()
            return True

    def _pause_s(self) -> float:
        pause_s = self._limits.first_pause_s * 2.0 ** min(self._num_pauses, 16)
        self._num_pauses += 1
        return min(pause_s, self._limits.longest_pause_s) * self._random.uniform(0.5, 1.0)
