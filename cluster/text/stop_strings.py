"""Finds stop strings in text that comes piece by piece, and holds back what may become one."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopScan:
    """text: what may go to the client now. stop: the stop string that ended it, if one did."""

    text: str
    stop: str | None = None


class StopStringScanner:
    """Watches one choice's text for `stops`.

    The stop string that is complete first ends the text; of two that end at the same character
    the longer one. Characters that may turn out to begin a stop string wait. Linear in the text
    for each stop string, whatever the text and its chunks (Knuth, Morris, Pratt).
    include_stop_str_in_output: the stop string itself goes out too.
    """

    def __init__(self, stops: Sequence[str], *, include_stop_str_in_output: bool = False) -> None:
        self._matchers = [_Matcher(stop) for stop in stops]
        self._first_characters = frozenset(stop[0] for stop in stops)
        self._includes_stop = include_stop_str_in_output
        self._held = ""
        self._has_stopped = False

    def push(self, text: str) -> StopScan:
        """Scan the next piece. After a stop string was found nothing more comes out."""
        if self._has_stopped:
            return StopScan("")
        if not self._held and self._first_characters.isdisjoint(text):
            return StopScan(text)
        pending = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            found = self._advance(character)
            if found is not None:
                return self._stop(pending[:end], found)
        num_held = max(matcher.num_matched for matcher in self._matchers)
        certain = len(pending) - num_held
        self._held = pending[certain:]
        return StopScan(pending[:certain])

    def flush(self) -> str:
        """What was held back, when no more text will come."""
        rest, self._held = self._held, ""
        return rest

    def _advance(self, character: str) -> str | None:
        found = ""
        for matcher in self._matchers:
            if matcher.advance(character) and len(matcher.stop) > len(found):
                found = matcher.stop
        return found or None

    def _stop(self, text: str, stop: str) -> StopScan:
        self._has_stopped = True
        self._held = ""
        return StopScan(text if self._includes_stop else text[: -len(stop)], stop)


class _Matcher:
    """How much of one stop string the text ends with, kept up to date character by character."""

    def __init__(self, stop: str) -> None:
        if not stop:
            raise ValueError("a stop string is empty: expected at least one character")
        self.stop = stop
        self.num_matched = 0
        self._shorter = _shorter_matches(stop)

    def advance(self, character: str) -> bool:
        """True when the text now ends with the whole stop string."""
        matched = self.num_matched
        while matched and (matched == len(self.stop) or self.stop[matched] != character):
            matched = self._shorter[matched - 1]
        if self.stop[matched] == character:
            matched += 1
        self.num_matched = matched
        return matched == len(self.stop)


def _shorter_matches(stop: str) -> list[int]:
    """For each prefix of `stop`, the length of its longest proper prefix that is also its end."""
    lengths = [0] * len(stop)
    matched = 0
    for place in range(1, len(stop)):
        while matched and stop[matched] != stop[place]:
            matched = lengths[matched - 1]
        if stop[matched] == stop[place]:
            matched += 1
        lengths[place] = matched
    return lengths
