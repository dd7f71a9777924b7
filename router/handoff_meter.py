"""Remembers what a hand-off costs beyond its computing, so that the next one can be weighed."""

# A hand-off that takes another time than the last ones counts this much at once.
_GAIN = 0.2
# Without a hand-off to learn from, what was learned is believed half as much after so long: a slow
# link would otherwise never be tried again.
_HALF_LIFE_S = 60.0


class HandoffMeter:
    """The part of hand-offs that nothing hides, in seconds of one monotonic clock.

    first_s: what to expect before the first one.
    """

    def __init__(self, *, first_s: float = 0.02) -> None:
        self._mean_s = first_s
        self._seen_at: float | None = None

    def see(self, exposed_s: float, now: float) -> None:
        """A hand-off took so long from the first token until its blocks were adopted."""
        gain = _GAIN if self._seen_at is not None else 1.0
        self._mean_s += gain * (exposed_s - self._mean_s)
        self._seen_at = now

    def expected_s(self, now: float) -> float:
        """What the next one is expected to take."""
        age_s = 0.0 if self._seen_at is None else now - self._seen_at
        return float(self._mean_s * 0.5 ** (age_s / _HALF_LIFE_S))
