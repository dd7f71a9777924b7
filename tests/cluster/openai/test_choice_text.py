"""A choice's text and end depend on its tokens alone, never on how they were grouped."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.errors import ReplicaLost, RequestRefused
from cluster.openai.choice_text import ChoiceEnd, ChoiceText, TextRules
from cluster.text.detokenizer import IncrementalDetokenizer
from replicas.request import FinishReason, Refusal, RefusalReason, TokenEntry

SETTINGS = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
LETTERS = st.text(alphabet="ab#é🏯", max_size=24)


def entry(index, token_ids=(), finish_reason=None, **fields):
    return TokenEntry("r", 0, 0, index, tuple(token_ids), finish_reason, **fields)


def chunked(token_ids, sizes, finish_reason=FinishReason.STOP):
    """Entries of the given sizes, over and over; the last one carries the end."""
    entries, start = [], 0
    while True:
        size = sizes[len(entries) % len(sizes)]
        part = token_ids[start : start + size]
        is_last = start + size >= len(token_ids)
        entries.append(entry(start, part, finish_reason if is_last else None))
        start += size
        if is_last:
            return entries


def play(tokenizer, entries, rules):
    choice = ChoiceText(IncrementalDetokenizer(tokenizer), rules)
    pieces = []
    for one in entries:
        text, end = choice.push(one)
        pieces.append(text)
        if end is not None:
            return "".join(pieces), end, choice.num_tokens
    raise AssertionError("the choice did not end")


@SETTINGS
@given(
    LETTERS,
    st.lists(st.text(alphabet="ab#é", min_size=1, max_size=3), max_size=3),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.booleans(),
    st.integers(0, 5),
)
def test_any_grouping_of_tokens_gives_the_same_text(
    tokenizer, text, stops, sizes, is_shown, min_tokens
):
    rules = TextRules(tuple(stops), include_stop_str_in_output=is_shown, min_tokens=min_tokens)
    token_ids = text.encode()
    one_by_one = play(tokenizer, chunked(token_ids, [1]), rules)
    assert play(tokenizer, chunked(token_ids, sizes), rules) == one_by_one


@SETTINGS
@given(LETTERS, st.text(alphabet="ab#é", min_size=1, max_size=3))
def test_the_text_ends_where_the_stop_string_first_ends(tokenizer, text, stop):
    shown, end, _ = play(tokenizer, chunked(text.encode(), [1]), TextRules((stop,)))
    before, found, _ = text.partition(stop)
    assert shown == before
    assert end == ChoiceEnd("stop", stop if found else None)


@SETTINGS
@given(st.binary(max_size=20), st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_bytes_that_are_no_utf8_come_out_as_a_whole_decode_shows_them(tokenizer, token_ids, sizes):
    shown, _, _ = play(tokenizer, chunked(token_ids, sizes), TextRules())
    assert shown == token_ids.decode(errors="replace")


def test_a_full_length_is_a_length(tokenizer):
    entries = [entry(0, b"ab", FinishReason.LENGTH)]
    assert play(tokenizer, entries, TextRules(("z",))) == ("ab", ChoiceEnd("length"), 2)


def test_a_stop_string_in_the_last_token_goes_before_the_length(tokenizer):
    entries = [entry(0, b"ab", FinishReason.LENGTH)]
    assert play(tokenizer, entries, TextRules(("b",))) == ("a", ChoiceEnd("stop", "b"), 2)


def test_a_sampled_end_token_counts_but_has_no_text(tokenizer):
    entries = [entry(0, b"ab"), entry(2, (), FinishReason.STOP, stop_token_id=256)]
    assert play(tokenizer, entries, TextRules()) == ("ab", ChoiceEnd("stop"), 3)


def test_the_engines_answer_to_an_early_end_is_a_normal_end(tokenizer):
    entries = [entry(0, b"ab"), entry(2, (), FinishReason.STOP_STRING)]
    assert play(tokenizer, entries, TextRules()) == ("ab", ChoiceEnd("stop"), 2)


def test_a_gap_in_the_tokens_is_a_broken_invariant(tokenizer):
    with pytest.raises(AssertionError, match="index=3 after 2 tokens"):
        play(tokenizer, [entry(0, b"ab"), entry(3, b"c", FinishReason.STOP)], TextRules())


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.CANCELLED])
def test_a_failed_choice_raises(tokenizer, reason):
    with pytest.raises(ReplicaLost):
        play(tokenizer, [entry(0, b"ab", reason)], TextRules())


def test_a_refused_choice_raises_its_refusal(tokenizer):
    refusal = Refusal(RefusalReason.EXPIRED, "Too late.")
    with pytest.raises(RequestRefused, match="Too late"):
        play(tokenizer, [entry(0, (), FinishReason.REFUSED, refusal=refusal)], TextRules())
