"""Prompt lookup against a plain scan of everything."""

from collections.abc import Sequence
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from replicas.speculation import ngram_index
from replicas.speculation.ngram_index import NgramIndex

LEAST, MOST = 2, 4
TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=120)


def index_of(tokens, *, least=LEAST, most=MOST, tries=None):
    index = NgramIndex(
        least=least,
        most=most,
        note_try=lambda length, is_hit: tries.append((length, is_hit)) if tries is not None else 0,
    )
    index.extend(tokens, stop=len(tokens))
    return index


def match_length(tokens, place):
    """How many tokens before `place` equal the last ones."""
    length = 0
    while length < place and tokens[place - length - 1] == tokens[-length - 1]:
        length += 1
    return length


def matches(tokens):
    """Length of the match before each earlier place, by a plain scan."""
    lengths = {place: match_length(tokens, place) for place in range(1, len(tokens))}
    return {place: length for place, length in lengths.items() if length >= LEAST}


@given(TEXTS)
def test_there_is_a_guess_exactly_where_a_scan_finds_a_match(tokens):
    assert bool(index_of(tokens).guess(tokens, 1)) == bool(matches(tokens))


@given(TEXTS)
def test_the_guess_goes_on_as_after_a_match_at_least_as_long_as_it_says(tokens):
    index = index_of(tokens)
    guess = index.guess(tokens, 3)
    if guess:
        found = [place for place, length in matches(tokens).items() if length >= index.match_tokens]
        assert any((tokens + guess)[place : place + 3] == guess for place in found)


@given(TEXTS)
def test_of_the_latest_places_the_longest_match_up_to_the_most_is_taken(tokens):
    latest = sorted(matches(tokens), reverse=True)[: ngram_index.MAX_CHAIN]
    longest = max((min(MOST, matches(tokens)[place]) for place in latest), default=0)
    assert index_of(tokens).match_tokens >= longest


@given(TEXTS, st.data())
def test_tokens_may_come_in_any_portions(tokens, data):
    index = index_of([])
    stop = 0
    while stop < len(tokens):
        stop += data.draw(st.integers(1, len(tokens) - stop))
        index.extend(tokens, stop=stop)
    assert index.guess(tokens, 5) == index_of(tokens).guess(tokens, 5)


def test_past_the_end_of_what_is_known_a_guess_repeats_itself():
    assert index_of([7, 8, 7, 8]).guess([7, 8, 7, 8], 5) == [7, 8, 7, 8, 7]


def test_a_longer_match_is_preferred_to_a_later_one():
    tokens = [1, 2, 3, 4, 50, 9, 3, 4, 60, 1, 2, 3, 4]
    assert index_of(tokens).guess(tokens, 1) == [50]


def test_a_match_that_holds_is_followed_and_grows():
    tries: list[tuple[int, bool]] = []
    tokens = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5]
    index = index_of(tokens, tries=tries)
    assert index.match_tokens == 5
    assert tries == [(2, True), (3, True), (4, True)]


def test_a_match_that_breaks_is_told_and_left():
    tries: list[tuple[int, bool]] = []
    tokens = [1, 2, 3, 1, 2, 9]
    assert index_of(tokens, tries=tries).guess(tokens, 2) == []
    assert tries == [(2, False)]


class CountingTokens(Sequence[int]):
    """A text that counts how often it is looked at."""

    def __init__(self, tokens):
        self.tokens = tokens
        self.num_reads = 0

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        self.num_reads += 1
        return self.tokens[index]


def test_the_work_for_a_token_does_not_grow_with_the_text():
    pattern = [0, 1, 2, 1, 0, 0, 2, 2, 1, 1]
    reads = {}
    for num_tokens in (500, 5000):
        tokens = CountingTokens([pattern[(i * i) % 10] for i in range(num_tokens)])
        index_of(tokens)
        reads[num_tokens] = tokens.num_reads / num_tokens
    assert reads[5000] < 1.2 * reads[500]


def test_only_so_many_places_are_remembered_and_the_later_ones_still_match():
    tokens = [*range(100), *range(100)]
    with patch.object(ngram_index, "MAX_PLACES", 64):
        index = index_of([])
        for stop in range(1, 200):
            index.extend(tokens, stop=stop)
            assert len(index) <= 64 + 1
        tokens = [*range(300), 290, 291]
        index = index_of([])
        for stop in range(1, 303):
            index.extend(tokens, stop=stop)
    assert index.guess(tokens, 2) == [292, 293]
