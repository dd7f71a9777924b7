"""Counts a run while it goes on, in a form that can be sent to whoever shows it."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One process's counts so far and its latencies since the last snapshot."""

    sent: int = 0
    running: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    output_tokens: int = 0
    ttfts_s: tuple[float, ...] = ()
    tpots_s: tuple[float, ...] = ()
    lags_s: tuple[float, ...] = ()


@dataclass(slots=True)
class Progress:
    """The driver's own counters; `take()` hands out a snapshot and starts new latency lists."""

    sent: int = 0
    running: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    output_tokens: int = 0
    ttfts_s: list[float] = field(default_factory=list)
    tpots_s: list[float] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)

    def take(self, *, tokens_in_flight: int) -> Snapshot:
        """Counts until now (tokens of unfinished calls too), latencies since the last call."""
        snapshot = Snapshot(
            self.sent,
            self.running,
            self.finished,
            self.failed,
            self.cancelled,
            self.output_tokens + tokens_in_flight,
            tuple(self.ttfts_s),
            tuple(self.tpots_s),
            tuple(self.lags_s),
        )
        self.ttfts_s, self.tpots_s, self.lags_s = [], [], []
        return snapshot


def merged(snapshots: list[Snapshot]) -> Snapshot:
    """The sum over processes."""
    return Snapshot(
        sum(s.sent for s in snapshots),
        sum(s.running for s in snapshots),
        sum(s.finished for s in snapshots),
        sum(s.failed for s in snapshots),
        sum(s.cancelled for s in snapshots),
        sum(s.output_tokens for s in snapshots),
        tuple(x for s in snapshots for x in s.ttfts_s),
        tuple(x for s in snapshots for x in s.tpots_s),
        tuple(x for s in snapshots for x in s.lags_s),
    )
