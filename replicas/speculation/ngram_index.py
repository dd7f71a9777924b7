"""Finds where a request's last tokens stood before, in time that does not grow with the request.

Prompt lookup (Saxena 2023) as LZ77 does it: every run of `least` tokens is remembered with the
place after its last appearance, and the places of earlier ones are chained to it. A match that was
found is followed as long as the tokens go on as they did there.

    tokens    ... a b c d e f ...... b c d          known so far
                          ^source                   e is expected next, then f
"""

from collections.abc import Callable, Sequence

# Earlier places that are tried for a longer match, the latest first.
MAX_CHAIN = 8
# Remembered places of one request; beyond that the older half is forgotten.
MAX_PLACES = 65_536

NoteTry = Callable[[int, bool], None]


class NgramIndex:
    """The index of one request.

    least, most: a match has at least `least` tokens; among places with matches the longest counts,
    up to `most` tokens, then the latest. note_try: told, for each token that was expected from a
    match, the length of that match and whether it came.
    """

    def __init__(self, *, least: int, most: int, note_try: NoteTry) -> None:
        self._least = least
        self._most = most
        self._note_try = note_try
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier: list[int | None] = []
        self._first_place = 0
        self._source: int | None = None
        self.num_indexed = 0
        self.match_tokens = 0

    def __len__(self) -> int:
        return len(self._earlier)

    @property
    def has_match(self) -> bool:
        """Whether the last tokens stood somewhere before."""
        return self._source is not None

    def extend(self, tokens: Sequence[int], *, stop: int) -> None:
        """Take in the tokens up to `stop`; those before num_indexed are as they were."""
        for place in range(self.num_indexed + 1, stop + 1):
            self._follow(tokens, place)
            self._remember(tokens, place)
        self.num_indexed = max(self.num_indexed, stop)
        if len(self._earlier) > MAX_PLACES:
            self._forget_older_half()

    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        """The next `count` tokens if they go on as after the match; none without a match.

        tokens: exactly those that were taken in. Past their end the guess repeats itself.
        """
        assert len(tokens) == self.num_indexed, (len(tokens), self.num_indexed)
        source = self._source
        if source is None:
            return []
        guessed = list(tokens[source : source + count])
        while len(guessed) < count:
            guessed.append(guessed[source + len(guessed) - len(tokens)])
        return guessed

    def _follow(self, tokens: Sequence[int], place: int) -> None:
        source = self._source
        if source is None:
            return
        has_come = tokens[source] == tokens[place - 1]
        self._note_try(self.match_tokens, has_come)
        if has_come:
            self._source = source + 1
            self.match_tokens += 1
        else:
            self._source = None
            self.match_tokens = 0

    def _remember(self, tokens: Sequence[int], place: int) -> None:
        """The run that ends before `place`, and where it stood before if that helps."""
        before: int | None = None
        if place >= self._least:
            run = tuple(tokens[place - self._least : place])
            before = self._latest.get(run)
            self._latest[run] = place
        self._earlier.append(before)
        if before is not None and self.match_tokens < self._most:
            self._find(tokens, place, before)

    def _find(self, tokens: Sequence[int], place: int, candidate: int | None) -> None:
        for _ in range(MAX_CHAIN):
            if candidate is None or candidate <= self._first_place:
                return
            length = self._common(tokens, place, candidate)
            if length > self.match_tokens:
                self._source, self.match_tokens = candidate, length
                if length == self._most:
                    return
            candidate = self._earlier[candidate - self._first_place - 1]

    def _common(self, tokens: Sequence[int], place: int, candidate: int) -> int:
        """How many tokens before both places are equal, up to `most`."""
        longest = min(self._most, candidate)
        length = self._least
        while length < longest and tokens[place - length - 1] == tokens[candidate - length - 1]:
            length += 1
        return length

    def _forget_older_half(self) -> None:
        num_forgotten = len(self._earlier) // 2
        self._first_place += num_forgotten
        del self._earlier[:num_forgotten]
        self._latest = {
            run: place for run, place in self._latest.items() if place > self._first_place
        }
