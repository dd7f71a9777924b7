"""Learns what a step of so many tokens takes, from the steps that the engine makes anyway.

Up to some number of tokens a step only waits for its weights and one more is nearly free; beyond,
each costs. A straight line (replicas.memory.step_times) cannot say where that begins.
"""

from bisect import bisect_left
from dataclasses import dataclass

# Numbers of tokens up to which each has an entry of its own; beyond, so many for each doubling.
_EXACT_BITS = 4
_BITS = 3
# How far one step moves an entry at most, as a share of it: at first, over the number of steps, and
# once there were many. So an entry follows the median: on a shared machine steps that take several
# times as long as the others are common.
_FIRST_MOVE = 1.0
_LAST_MOVE = 0.02
# Steps after which what an entry has above the one below it is believed by half. A dear one may
# have met a neighbour on the machine: it is tried again, the less often the more it was.
_HALF_BELIEVED_STEPS = 2
# An entry that no step has renewed for so many steps is forgotten: context lengths and neighbours
# on the machine change, and what seemed too dear has to be tried again.
_FORGET_AFTER_STEPS = 1000


@dataclass(slots=True)
class _Entry:
    """Mean tokens and median seconds of steps of about that many tokens."""

    num_tokens: float
    seconds: float
    num_steps: int
    last_step: int


class StepTable:
    """Seconds by tokens; what lies between two known numbers is interpolated."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._num_steps = 0
        self._tokens: list[float] = []
        self._seconds: list[float] = []
        self._is_stale = False

    @property
    def is_known(self) -> bool:
        """Whether there was a step."""
        return bool(self._entries)

    def record(self, num_tokens: int, *, seconds: float) -> None:
        """One step."""
        if num_tokens < 1 or seconds <= 0.0:
            return
        self._num_steps += 1
        self._is_stale = True
        key = _key_of(num_tokens)
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = _Entry(float(num_tokens), seconds, 1, self._num_steps)
            return
        entry.num_steps += 1
        entry.last_step = self._num_steps
        move = max(_LAST_MOVE, _FIRST_MOVE / entry.num_steps)
        entry.seconds = min(max(seconds, entry.seconds * (1 - move)), entry.seconds * (1 + move))
        entry.num_tokens += move * (num_tokens - entry.num_tokens)

    def seconds(self, num_tokens: int) -> float:
        """Of a step of so many tokens; asserts `is_known`.

        Beyond the largest known number as much as there: trying it is how it becomes known.
        """
        assert self._entries, "no step was measured"
        if self._is_stale:
            self._renew()
        tokens, seconds = self._tokens, self._seconds
        above = bisect_left(tokens, num_tokens)
        if above == len(tokens):
            return seconds[-1]
        if above == 0 or tokens[above] == num_tokens:
            return seconds[above]
        share = (num_tokens - tokens[above - 1]) / (tokens[above] - tokens[above - 1])
        return seconds[above - 1] + share * (seconds[above] - seconds[above - 1])

    def _renew(self) -> None:
        self._is_stale = False
        oldest = self._num_steps - _FORGET_AFTER_STEPS
        self._entries = {
            key: entry for key, entry in self._entries.items() if entry.last_step > oldest
        }
        known = sorted(self._entries.values(), key=lambda entry: entry.num_tokens)
        self._tokens = [entry.num_tokens for entry in known]
        self._seconds = []
        for entry in known:
            below = self._seconds[-1] if self._seconds else entry.seconds
            belief = entry.num_steps / (entry.num_steps + _HALF_BELIEVED_STEPS)
            # More tokens never take less time: where it seems so, somebody disturbed a step.
            self._seconds.append(below + belief * max(0.0, entry.seconds - below))


def _key_of(num_tokens: int) -> int:
    """Numbers with the same key share an entry."""
    num_bits = num_tokens.bit_length()
    if num_bits <= _EXACT_BITS:
        return num_tokens
    return (num_bits << _BITS) + (num_tokens >> (num_bits - 1 - _BITS)) - (1 << _BITS)
