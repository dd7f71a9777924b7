"""Events are found whole however the bytes were cut."""

import pytest

from loadtest.sse import EventSplitter

STREAM = b': keep-alive\n\ndata: {"a":1}\n\nevent: x\ndata: {"b":\ndata: 2}\n\ndata:[DONE]\n\n'
PAYLOADS = [b'{"a":1}', b'{"b":\n2}', b"[DONE]"]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_payloads_do_not_depend_on_where_the_bytes_were_cut(size: int, line_end: bytes) -> None:
    stream = STREAM.replace(b"\n", line_end)
    splitter = EventSplitter()
    found = []
    for start in range(0, len(stream), size):
        found += splitter.push(stream[start : start + size])
    assert found == PAYLOADS


def test_an_unfinished_event_waits() -> None:
    splitter = EventSplitter()
    assert splitter.push(b"data: half") == []
    assert splitter.push(b" and half\n\n") == [b"half and half"]
