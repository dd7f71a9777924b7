"""What the page shows of the cluster, a few times a second and only while somebody watches.

All of it was already here or comes with the replicas' streams; a watcher costs each replica a
view now and then (replicas.engine_view), and this gateway one JSON text for all watchers together.
"""

import asyncio
import logging
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import orjson

from cluster.live.live_events import EventLog, ReplicaLook
from cluster.live.live_window import LatencyWindow, RateWindow, percentiles
from cluster.replica.replica_announcement import ReplicaAnnouncement
from cluster.streams.stream_codec import EngineReport
from replicas.engine_view import EngineView
from router.replica_status import ReplicaStatus

log = logging.getLogger(__name__)

INTERVAL_S = 0.2
WATCH_RENEWAL_S = 0.5
WATCH_S = 2.0
MAX_WATCHERS = 64
# A reader this far behind (4 s) loses the oldest updates; its bars get a gap.
MAX_WAITING_UPDATES = 20
LABEL_CHARACTERS = 6


class WatchedReplica(Protocol):
    """The part of cluster.dispatch.replica_link.ReplicaLink that is looked at."""

    @property
    def announcement(self) -> ReplicaAnnouncement:
        """What it announced."""
        ...

    @property
    def report(self) -> EngineReport:
        """What it said last."""
        ...

    def status(self) -> ReplicaStatus:
        """How it is now."""
        ...

    def watch(self, seconds: float) -> None:
        """Ask it for views."""
        ...

    def take_view(self) -> EngineView | None:
        """What was seen of its engine since the last call."""
        ...


class TooManyWatchers(Exception):
    """Nobody else can watch at this gateway now."""


@dataclass(slots=True)
class _Figures:
    """What is remembered of one replica from one update to the next.

    clock_offset_s: what to add to its engine's clock to get ours; the least that was ever seen,
    since what makes it larger is the time a view took to get here.
    """

    output_rate: RateWindow = field(default_factory=RateWindow)
    prompt_rate: RateWindow = field(default_factory=RateWindow)
    ttft: LatencyWindow = field(default_factory=LatencyWindow)
    tpot: LatencyWindow = field(default_factory=LatencyWindow)
    clock_offset_s: float = float("inf")


class LiveWatcher:
    """One reader of updates."""

    def __init__(self, on_close: Callable[["LiveWatcher"], None]) -> None:
        self._on_close = on_close
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING_UPDATES)
        self._wake = asyncio.Event()
        self._has_ended = False

    def push(self, update: bytes) -> None:
        """Leave an update; the oldest makes room when the reader is far behind."""
        self._waiting.append(update)
        self._wake.set()

    async def next_update(self) -> bytes | None:
        """The oldest update that was not read; waits for one. None when no more will come."""
        while not self._waiting:
            if self._has_ended:
                return None
            self._wake.clear()
            await self._wake.wait()
        return self._waiting.popleft()

    def end(self) -> None:
        """No update will come any more."""
        self._has_ended = True
        self._wake.set()

    def close(self) -> None:
        """Watch no longer."""
        self._on_close(self)


class LiveFeed:
    """Updates as JSON texts.

    replicas: the replicas now, by id. clock: monotonic seconds. wall_clock: Unix seconds.
    """

    def __init__(
        self,
        replicas: Callable[[], Mapping[str, WatchedReplica]],
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.events = EventLog(wall_clock)
        self._replicas = replicas
        self._clock = clock
        self._interval_s = interval_s
        self._figures: dict[str, _Figures] = {}
        self._watchers: set[LiveWatcher] = set()
        self._ticker: asyncio.Task[None] | None = None
        self._renewed_at = float("-inf")
        self._told = 0

    @property
    def num_watchers(self) -> int:
        """Readers of updates."""
        return len(self._watchers)

    def watch(self) -> LiveWatcher:
        """A new reader, whose first update holds the events so far; TooManyWatchers if it is one
        too many."""
        if len(self._watchers) >= MAX_WATCHERS:
            raise TooManyWatchers
        watcher = LiveWatcher(self._watchers.discard)
        events = [asdict(event) for event in self.events.since(0)]
        watcher.push(orjson.dumps({"events": events}))
        self._watchers.add(watcher)
        if self._ticker is None or self._ticker.done():
            self._ticker = asyncio.create_task(self._tick_on(), name="live feed")
        return watcher

    async def close(self) -> None:
        """Stop looking; readers are told that nothing more will come."""
        for watcher in self._watchers:
            watcher.end()
        self._watchers.clear()
        if self._ticker is not None:
            self._ticker.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticker

    def update(self) -> dict[str, Any]:
        """The cluster now, and what happened since the last call."""
        now = self._clock()
        replicas = self._replicas()
        looks = [_look(replica_id, replica) for replica_id, replica in replicas.items()]
        self.events.look(looks)
        self._figures = {id_: self._figures.get(id_) or _Figures() for id_ in replicas}
        told, self._told = self._told, self.events.last_number
        return {
            "at": round(now, 3),
            "replicas": [self._describe(look, replicas[look.replica_id], now) for look in looks],
            "cluster": {
                "ttft": _latency([f.ttft for f in self._figures.values()], now),
                "tpot": _latency([f.tpot for f in self._figures.values()], now),
            },
            "events": [asdict(event) for event in self.events.since(told)],
        }

    async def _tick_on(self) -> None:
        """Until nobody watches any more."""
        while self._watchers:
            self._renew()
            try:
                text = orjson.dumps(self.update())
            except Exception:  # a page without news is better than a gateway without a page
                log.exception("live update failed")
            else:
                for watcher in self._watchers:
                    watcher.push(text)
            await asyncio.sleep(self._interval_s)
        # Figures of before a pause would be taken for those of now.
        self._figures.clear()

    def _renew(self) -> None:
        """Ask the replicas for views again before they stop sending them."""
        if self._clock() - self._renewed_at >= WATCH_RENEWAL_S:
            self._renewed_at = self._clock()
            for replica in self._replicas().values():
                replica.watch(WATCH_S)

    def _describe(self, look: ReplicaLook, replica: WatchedReplica, now: float) -> dict[str, Any]:
        figures, stats = self._figures[look.replica_id], look.report.stats
        view = replica.take_view()
        if view is not None:
            figures.ttft.add(now, view.ttfts_s)
            figures.tpot.add(now, view.tpots_s)
            figures.clock_offset_s = min(figures.clock_offset_s, now - view.at)
        return {
            "id": look.replica_id,
            "role": look.role,
            "state": look.state.value,
            "epoch": look.report.epoch,
            "step": stats.step,
            "running": stats.num_running,
            "waiting": stats.num_waiting,
            "max_running": stats.max_num_seqs,
            "rows": stats.num_rows,
            "step_ms": round(1000 * stats.run_s, 2),
            "output_tokens_per_s": round(
                figures.output_rate.add(now, stats.generated_tokens_total), 1
            ),
            "prompt_tokens_per_s": round(
                figures.prompt_rate.add(now, stats.computed_prompt_tokens_total), 1
            ),
            "prompt_tokens": stats.prompt_tokens_total,
            "hit_tokens": stats.hit_tokens_total,
            "num_blocks": stats.num_blocks or replica.announcement.num_blocks,
            "block_size": replica.announcement.block_size,
            "free_blocks": stats.num_free_blocks,
            "cached_blocks": stats.num_cached_blocks,
            "shared_blocks": stats.num_shared_blocks,
            "ttft": _latency([figures.ttft], now),
            "tpot": _latency([figures.tpot], now),
            "view": None if view is None else _view(view, figures.clock_offset_s),
        }


def request_label(request_id: str) -> str:
    """A few characters that tell requests apart and name nothing else.

    The gateway's ids are `chatcmpl-X-random-index`; a client that chose X finds its own request by
    the last characters of X.
    """
    parts = request_id.rsplit("-", 2)
    name = parts[0] if len(parts) == 3 else request_id
    return name[-LABEL_CHARACTERS:]


def _look(replica_id: str, replica: WatchedReplica) -> ReplicaLook:
    return ReplicaLook(
        replica_id, replica.announcement.role, replica.status().state, replica.report
    )


def _view(view: EngineView, offset_s: float) -> dict[str, Any]:
    return {
        "spans": [
            [
                span.lane,
                request_label(span.request_id),
                span.choice,
                int(span.kind),
                span.num_tokens,
                round(span.started_at + offset_s, 3),
                round(span.ended_at + offset_s, 3),
            ]
            for span in view.spans
        ],
        "hidden": view.num_hidden_rows,
        "cells": b64encode(view.cells).decode("ascii"),
        "blocks_per_cell": view.blocks_per_cell,
    }


def _latency(windows: Iterable[LatencyWindow], now: float) -> dict[str, float] | None:
    """Percentiles in milliseconds over all windows; None when nothing was seen."""
    found = percentiles([duration_s for window in windows for duration_s in window.recent(now)])
    if found is None:
        return None
    return {
        "num": found.num,
        "p50": round(1000 * found.p50, 1),
        "p90": round(1000 * found.p90, 1),
        "p99": round(1000 * found.p99, 1),
    }
