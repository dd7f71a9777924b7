"""What somebody who watches an engine sees: who was in its last steps, and its blocks as a map.

The picture is the timeline of lecture 11, 11.2: one lane for each slot of the batch, and in it the
requests that held the slot one after another. Nothing is recorded while nobody watches.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from replicas.request import FinishReason
from replicas.request_state import RequestState
from replicas.step_plan import PlannedStep

VIEW_INTERVAL_S = 0.2
# A view costs the engine at most this share of its time, however many blocks there are.
MAX_VIEW_SHARE = 0.02
MAX_LANES = 64
MAX_CELLS = 1024
MAX_SPANS = 2048
MAX_LATENCIES = 512
# Steps closer together than this are one stretch of work.
JOIN_GAP_S = 0.05

# A cell is kind * LEVELS + level: the most frequent kind among its blocks that are not free, and
# how many of LEVELS - 1 parts of its blocks are not free.
LEVELS = 64
_NATURAL_ENDS = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.STOP_STRING)


class RowKind(IntEnum):
    """What a row's tokens were computed for."""

    PREFILL = 0
    DECODE = 1
    RECOMPUTE = 2


class StepRow(NamedTuple):
    """One request in one step; its lane is the slot it keeps while it runs."""

    lane: int
    request_id: str
    choice: int
    kind: RowKind
    num_tokens: int


class Span(NamedTuple):
    """A request's rows of one kind in consecutive steps; times in seconds of the engine's clock."""

    lane: int
    request_id: str
    choice: int
    kind: RowKind
    num_tokens: int
    started_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class EngineView:
    """What happened since the view before, and the blocks now.

    num_hidden_rows: rows of the last step in lanes beyond MAX_LANES. cells: one byte for every
    blocks_per_cell blocks, kind * LEVELS + level, kinds as in BlockAllocator.states.
    ttfts_s: first tokens since the last view, from admission on; tpots_s: natural ends.
    """

    at: float
    spans: tuple[Span, ...] = ()
    num_hidden_rows: int = 0
    cells: bytes = b""
    blocks_per_cell: int = 1
    ttfts_s: tuple[float, ...] = ()
    tpots_s: tuple[float, ...] = ()


class ViewRecorder:
    """Collects a view from one step to the next, while somebody watches.

    clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._watched_until = float("-inf")
        self._next_at = float("-inf")
        self._open: dict[int, Span] = {}
        self._spans: list[Span] = []
        self._num_hidden_rows = 0
        self._ttfts_s: list[float] = []
        self._tpots_s: list[float] = []
        self.is_watching = False

    def watch(self, seconds: float) -> None:
        """Record for so long from now on, or longer if that was asked for already."""
        now = self._clock()
        self._watched_until = max(self._watched_until, now + seconds)
        self.is_watching = self._watched_until > now

    def note_step(self, rows: Iterable[StepRow], *, started_at: float, ended_at: float) -> None:
        """One step was computed."""
        self._num_hidden_rows = 0
        for row in rows:
            if row.lane >= MAX_LANES:
                self._num_hidden_rows += 1
                continue
            last = self._open.get(row.lane)
            if last is not None and _goes_on(last, row, started_at):
                self._open[row.lane] = last._replace(
                    num_tokens=last.num_tokens + row.num_tokens, ended_at=ended_at
                )
                continue
            if last is not None:
                self._close_span(last)
            self._open[row.lane] = Span(*row, started_at, ended_at)

    def note_first_token(self, request: RequestState, now: float) -> None:
        """A choice has its first token."""
        if len(self._ttfts_s) < MAX_LATENCIES:
            self._ttfts_s.append(now - request.arrived_at)

    def note_end(self, request: RequestState, reason: FinishReason) -> None:
        """A choice ended; the time per token of a natural end is known now."""
        moments = request.timeline
        if reason not in _NATURAL_ENDS or len(self._tpots_s) >= MAX_LATENCIES:
            return
        if moments.first_token_at is None or moments.finished_at is None:
            return
        if request.num_output_tokens > 1:
            decode_s = moments.finished_at - moments.first_token_at
            self._tpots_s.append(decode_s / (request.num_output_tokens - 1))

    def take(self, block_states: Callable[[], bytes], *, is_idle: bool) -> EngineView | None:
        """The view since the last one; None if that was a moment ago.

        is_idle: nothing more will come for now, so what there is need not wait.
        """
        now = self._clock()
        if now >= self._watched_until:
            self._stop()
            return None
        has_news = bool(self._open or self._spans)
        if now < self._next_at and not (is_idle and has_news):
            return None
        cells, blocks_per_cell = block_cells(block_states())
        view = EngineView(
            at=now,
            spans=(*self._spans, *self._open.values()),
            num_hidden_rows=self._num_hidden_rows,
            cells=cells,
            blocks_per_cell=blocks_per_cell,
            ttfts_s=tuple(self._ttfts_s),
            tpots_s=tuple(self._tpots_s),
        )
        self._forget()
        cost_s = self._clock() - now
        self._next_at = now + max(VIEW_INTERVAL_S, cost_s / MAX_VIEW_SHARE)
        return view

    def _close_span(self, span: Span) -> None:
        if len(self._spans) < MAX_SPANS:
            self._spans.append(span)

    def _stop(self) -> None:
        self.is_watching = False
        self._forget()

    def _forget(self) -> None:
        self._open.clear()
        self._spans.clear()
        self._ttfts_s.clear()
        self._tpots_s.clear()
        self._num_hidden_rows = 0


def step_rows(planned: PlannedStep) -> Iterable[StepRow]:
    """The rows of a step, as somebody who watches sees them."""
    batch = planned.batch
    counts = (batch.query_start[1:] - batch.query_start[:-1]).tolist()
    for request, lane, count, context in zip(
        planned.requests, batch.slots.tolist(), counts, batch.context_lens.tolist(), strict=True
    ):
        is_new = context - count < request.num_prompt_tokens
        if request in planned.drafts or (not is_new and count == 1):
            kind = RowKind.DECODE
        else:
            kind = RowKind.PREFILL if not request.num_preemptions else RowKind.RECOMPUTE
        yield StepRow(lane, request.origin.request_id, request.choice, kind, count)


def block_cells(states: Sequence[int]) -> tuple[bytes, int]:
    """At most MAX_CELLS cells for any number of block states, and how many blocks each stands for.

    A cell shows the most frequent kind among its blocks that are not free, and their share.
    """
    per_cell = max(1, -(-len(states) // MAX_CELLS))
    if per_cell == 1:
        full = LEVELS - 1
        return bytes(state * LEVELS + full if state else 0 for state in states), 1
    cells = bytearray()
    for start in range(0, len(states), per_cell):
        part = states[start : start + per_cell]
        kinds = Counter(state for state in part if state)
        if not kinds:
            cells.append(0)
            continue
        (kind, _count), *_rest = kinds.most_common(1)
        level = max(1, round(kinds.total() * (LEVELS - 1) / len(part)))
        cells.append(kind * LEVELS + level)
    return bytes(cells), per_cell


def _goes_on(span: Span, row: StepRow, started_at: float) -> bool:
    """Whether a row continues what its lane last showed; each prefill chunk shows for itself."""
    return (
        row.kind is RowKind.DECODE
        and (row.request_id, row.choice, row.kind) == (span.request_id, span.choice, span.kind)
        and started_at - span.ended_at <= JOIN_GAP_S
    )
