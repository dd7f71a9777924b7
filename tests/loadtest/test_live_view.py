"""The live view says what happens, on a terminal and in a log."""

import io

from rich.console import Console

from loadtest.live_view import LineView, TableView, open_view, sparkline
from loadtest.progress import Snapshot, merged

SNAPSHOT = Snapshot(20, 5, 14, 1, 0, 700, (0.1, 0.2), (0.01,), (0.001,))


def test_a_pipe_gets_plain_lines_every_few_seconds() -> None:
    out = io.StringIO()
    view = open_view("title", 60, out=out)
    assert isinstance(view, LineView)
    for second in range(12):
        view.show(float(second), SNAPSHOT)
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert "\x1b" not in out.getvalue()
    assert "sent 20  running 5  finished 14  failed 1" in lines[1]
    assert "ttft 150.0 / 200.0 ms" in lines[1]


def test_a_terminal_gets_a_table() -> None:
    out = io.StringIO()
    view = TableView("title", None, Console(file=out, force_terminal=True, width=100))
    view.show(1.0, SNAPSHOT)
    view.show(2.0, SNAPSHOT)
    view.close()
    text = out.getvalue()
    assert "5 running" in text
    assert "TTFT" in text


def test_snapshots_of_processes_are_added_up() -> None:
    both = merged([SNAPSHOT, SNAPSHOT])
    assert (both.sent, both.output_tokens, len(both.ttfts_s)) == (40, 1400, 4)


def test_a_sparkline_is_full_at_its_highest() -> None:
    assert sparkline([0.0, 5.0, 10.0]) == " ▄█"
    assert sparkline([]) == ""
