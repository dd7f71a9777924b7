"""Remembers what a hand-off costs beyond its computing, so that the next one can be weighed."""

# A hand-off that takes another time than the last ones counts this much at once.
_GAIN = 0.2
# The first one opens connections, and any may meet a machine that is busy for a moment. So none
# counts for more than this many times what was expected; a link that has become slow is believed
# after a few.
_MAX_SURPRISE = 4.0
# Without a hand-off to learn from, what was learned is believed half as much after so long: a slow
# link would otherwise never be tried again.
_HALF_LIFE_S = 60.0


class HandoffMeter:
    """The part of hand-offs that nothing hides, in seconds of one monotonic clock.

    first_s: what to expect before the first one.
    """

    def __init__(self, *, first_s: float = 0.02) -> None:
        self._first_s = self._mean_s = first_s
        self._seen_at: float | None = None

    def see(self, exposed_s: float, now: float) -> None:
        """A hand-off took so long from the first token until its blocks were adopted."""
        most_s = _MAX_SURPRISE * max(self._mean_s, self._first_s)
        self._mean_s += _GAIN * (min(exposed_s, most_s) - self._mean_s)
        self._seen_at = now

    def expected_s(self, now: float) -> float:
        """What the next one is expected to take."""
        return self._mean_s * self.trust(now)

    def trust(self, now: float) -> float:
        """How much what is known of hand-offs is still believed: from 1, right after one, to 0."""
        age_s = 0.0 if self._seen_at is None else now - self._seen_at
        return float(0.5 ** (age_s / _HALF_LIFE_S))
