"""Bounds how much work retries may add, so that a failing cluster is not finished off by them.

A request may be tried a few times; all requests together may add a share of the traffic, plus a
trickle that lets a quiet cluster recover (the token bucket of Finagle's retry budget). The bucket
holds enough for the loss of one full replica, whose requests all come back in one moment.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """How much may be tried again.

    max_attempts: attempts of one request, the first included. retry_ratio: retries that every
    first attempt pays for. min_retries_per_s: retries that time alone pays for. burst_retries:
    most retries that can be saved up; the budget starts with so many.
    """

    max_attempts: int = 3
    retry_ratio: float = 0.2
    min_retries_per_s: float = 1.0
    burst_retries: float = 512.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts={self.max_attempts}: expected at least 1")
        if not self.burst_retries >= 1.0:
            raise ValueError(f"burst_retries={self.burst_retries}: expected at least 1")
        for name in ("retry_ratio", "min_retries_per_s"):
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 or more")


class RetryBudget:
    """The retries that a gateway may still make. Times are seconds of one monotonic clock."""

    def __init__(self, limits: RetryLimits, *, now: float) -> None:
        self._limits = limits
        self._tokens = limits.burst_retries
        self._filled_at = now
        self.num_spent = 0
        self.num_denied = 0

    def on_request(self) -> None:
        """A request is tried for the first time."""
        self._add(self._limits.retry_ratio)

    def spend(self, *, attempts_made: int, now: float) -> bool:
        """Whether a request that was tried so often may be tried again; counts it if so."""
        self._fill(now)
        if attempts_made >= self._limits.max_attempts or self._tokens < 1.0:
            self.num_denied += 1
            return False
        self._tokens -= 1.0
        self.num_spent += 1
        return True

    def available(self, now: float) -> float:
        """Retries that could be made now."""
        self._fill(now)
        return self._tokens

    def _fill(self, now: float) -> None:
        self._add(max(0.0, now - self._filled_at) * self._limits.min_retries_per_s)
        self._filled_at = max(self._filled_at, now)

    def _add(self, tokens: float) -> None:
        self._tokens = min(self._limits.burst_retries, self._tokens + tokens)
