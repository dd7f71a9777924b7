"""A stop string is found wherever the chunks fall, and no character of it leaves too early."""

import itertools
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.text.stop_strings import StopStringScanner


def expected(text: str, stops: list[str], *, includes: bool) -> tuple[str, str | None]:
    """Character by character, the plain way."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return (text[:end] if includes else text[: end - len(stop)]), stop
    return text, None


def scanned(chunks: list[str], stops: list[str], *, includes: bool) -> tuple[str, str | None]:
    scanner = StopStringScanner(stops, include_stop_str_in_output=includes)
    out = ""
    for chunk in chunks:
        scan = scanner.push(chunk)
        out += scan.text
        if scan.stop is not None:
            return out, scan.stop
    return out + scanner.flush(), None


def chunkings(text: str) -> list[list[str]]:
    """Every way to cut `text`."""
    ways = []
    for cuts in itertools.product([False, True], repeat=max(0, len(text) - 1)):
        places = [0, *[i + 1 for i, cut in enumerate(cuts) if cut], len(text)]
        ways.append([text[a:b] for a, b in itertools.pairwise(places)])
    return ways


@pytest.mark.parametrize("includes", [False, True])
@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("say aabaab!", ["aab"]),
        ("aaaab tail", ["aab", "b"]),
        ("abcdab", ["abcd", "bc"]),
        ("xabcx", ["abcd", "cx"]),
        ("no stop ab", ["abc", "stopp"]),
        ("ababac", ["abac", "bab"]),
        ("🙂🙃🙂", ["🙃🙂"]),
        ("", ["a"]),
    ],
)
def test_every_chunking_gives_the_same_answer(text: str, stops: list[str], includes: bool) -> None:
    for chunks in chunkings(text):
        assert scanned(chunks, stops, includes=includes) == expected(text, stops, includes=includes)


@settings(max_examples=1000, deadline=None)
@given(
    text=st.text(alphabet="abc", max_size=30),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=6), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
    includes=st.booleans(),
)
def test_random_texts_agree_with_the_plain_way(
    text: str, stops: list[str], seed: int, includes: bool
) -> None:
    chooser = random.Random(seed)
    chunks = []
    rest = text
    while rest:
        size = chooser.randrange(0, 5)
        chunks.append(rest[:size])
        rest = rest[size:]
    assert scanned(chunks, stops, includes=includes) == expected(text, stops, includes=includes)


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(alphabet="ab", max_size=25),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_held_back_text_is_never_more_than_a_begun_stop_string(text: str, stops: list[str]) -> None:
    scanner = StopStringScanner(stops)
    sent = ""
    for place, character in enumerate(text, start=1):
        scan = scanner.push(character)
        sent += scan.text
        if scan.stop is not None:
            return
        held = text[len(sent) : place]
        longest = max(
            (k for stop in stops for k in range(len(stop)) if text[:place].endswith(stop[:k])),
        )
        assert held == text[place - longest : place]


def test_nothing_comes_out_after_the_stop() -> None:
    scanner = StopStringScanner(["STOP"])
    assert scanner.push("go STOP more").text == "go "
    assert scanner.push("even more").text == ""
    assert scanner.flush() == ""


def test_without_stop_strings_all_text_passes() -> None:
    scanner = StopStringScanner([])
    assert scanner.push("anything").text == "anything"
    assert scanner.flush() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="stop string is empty"):
        StopStringScanner(["ok", ""])


def test_a_long_near_miss_takes_linear_time() -> None:
    stop = "a" * 4000 + "b"

    def seconds(length: int) -> float:
        scanner = StopStringScanner([stop])
        started_at = time.perf_counter()
        for _ in range(length):
            scanner.push("a")
        return time.perf_counter() - started_at

    seconds(5_000)
    assert seconds(40_000) < 8 * max(seconds(5_000), 0.002) * 4
