"""Shows a run while it goes on: a table that redraws itself, or plain lines when piped."""

import sys
from collections import deque
from typing import Protocol, TextIO

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from loadtest.progress import Snapshot

RECENT = 2000
REDRAW_EVERY_S = 0.5
LINE_EVERY_S = 5.0
SPARKS = " ▁▂▃▄▅▆▇█"
SPARK_WIDTH = 40


class View(Protocol):
    """Something that can be told how a run goes."""

    def show(self, elapsed_s: float, snapshot: Snapshot) -> None:
        """Take a snapshot; draw if it is time to."""

    def close(self) -> None:
        """Leave the last state on the screen."""


def open_view(title: str, end_s: float | None, *, out: TextIO | None = None) -> View:
    """A redrawn table on a terminal, plain lines elsewhere."""
    stream = out or sys.stderr
    if stream.isatty():
        return TableView(title, end_s, Console(file=stream))
    return LineView(title, end_s, stream)


class RunState:
    """Keeps what both views need: recent latencies, rates since the last drawing."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.elapsed_s = 0.0
        self.tokens_per_s = 0.0
        self.requests_per_s = 0.0
        self.history: deque[float] = deque(maxlen=SPARK_WIDTH)
        self._ttfts: deque[float] = deque(maxlen=RECENT)
        self._tpots: deque[float] = deque(maxlen=RECENT)
        self._lags: deque[float] = deque(maxlen=RECENT)
        self._marked = (0.0, 0, 0)

    def take(self, elapsed_s: float, snapshot: Snapshot) -> None:
        """Remember a snapshot."""
        self.elapsed_s, self.snapshot = max(elapsed_s, 0.0), snapshot
        self._ttfts.extend(snapshot.ttfts_s)
        self._tpots.extend(snapshot.tpots_s)
        self._lags.extend(snapshot.lags_s)

    def mark(self) -> None:
        """Work out the rates since the last mark."""
        since_s = self.elapsed_s - self._marked[0]
        if since_s <= 0:
            return
        self.tokens_per_s = max(0.0, (self.snapshot.output_tokens - self._marked[1]) / since_s)
        self.requests_per_s = (self.snapshot.finished - self._marked[2]) / since_s
        self.history.append(self.tokens_per_s)
        self._marked = (self.elapsed_s, self.snapshot.output_tokens, self.snapshot.finished)

    def latency(self, name: str) -> str:
        """Recent p50 / p99 in milliseconds."""
        values = {"ttft": self._ttfts, "tpot": self._tpots, "lag": self._lags}[name]
        if not values:
            return "-"
        p50, p99 = np.percentile(np.array(values) * 1000.0, (50, 99))
        return f"{p50:,.1f} / {p99:,.1f} ms"


class TableView:
    """A table redrawn in place."""

    def __init__(self, title: str, end_s: float | None, console: Console) -> None:
        self._title = title
        self._end_s = end_s
        self._state = RunState()
        self._drawn_at_s = -REDRAW_EVERY_S
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def show(self, elapsed_s: float, snapshot: Snapshot) -> None:
        self._state.take(elapsed_s, snapshot)
        if elapsed_s - self._drawn_at_s >= REDRAW_EVERY_S:
            self._drawn_at_s = elapsed_s
            self._state.mark()
            self._live.update(self._table(), refresh=True)

    def close(self) -> None:
        self._live.update(self._table(), refresh=True)
        self._live.stop()

    def _table(self) -> Table:
        state, now = self._state, self._state.snapshot
        table = Table(title=self._title, title_justify="left", show_header=False, box=None)
        table.add_column(style="dim", justify="right")
        table.add_column()
        of = "" if self._end_s is None else f" of {self._end_s:,.0f}"
        table.add_row("elapsed", f"{state.elapsed_s:,.0f}{of} s")
        failed = f"[red]{now.failed:,} failed[/red]" if now.failed else "0 failed"
        table.add_row(
            "requests",
            f"{now.sent:,} sent, [bold]{now.running:,} running[/bold], {now.finished:,} finished, "
            f"{failed}, {now.cancelled:,} cancelled",
        )
        table.add_row("rate", f"{state.requests_per_s:,.1f} requests/s")
        table.add_row("output", f"{state.tokens_per_s:,.0f} tokens/s  {sparkline(state.history)}")
        table.add_row("TTFT p50/p99", state.latency("ttft"))
        table.add_row("TPOT p50/p99", state.latency("tpot"))
        table.add_row("send lag p50/p99", state.latency("lag"))
        return table


class LineView:
    """A line every few seconds, for logs."""

    def __init__(self, title: str, end_s: float | None, out: TextIO) -> None:
        self._state = RunState()
        self._out = out
        self._drawn_at_s = 0.0
        end = "" if end_s is None else f" sending for {end_s:,.0f} s"
        print(f"{title}{end}", file=out, flush=True)

    def show(self, elapsed_s: float, snapshot: Snapshot) -> None:
        self._state.take(elapsed_s, snapshot)
        if elapsed_s - self._drawn_at_s >= LINE_EVERY_S:
            self._drawn_at_s = elapsed_s
            self._print()

    def close(self) -> None:
        self._print()

    def _print(self) -> None:
        state, now = self._state, self._state.snapshot
        state.mark()
        print(
            f"{state.elapsed_s:7.1f} s  sent {now.sent}  running {now.running}  "
            f"finished {now.finished}  failed {now.failed}  {state.tokens_per_s:.0f} tok/s  "
            f"ttft {state.latency('ttft')}  tpot {state.latency('tpot')}  "
            f"lag {state.latency('lag')}",
            file=self._out,
            flush=True,
        )


def sparkline(values: deque[float] | list[float]) -> str:
    """Values as a row of blocks, the highest full."""
    top = max(values, default=0.0)
    if top <= 0:
        return ""
    return "".join(SPARKS[round(value / top * (len(SPARKS) - 1))] for value in values)
