"""Keeps a replica's totals growing when its engine core is replaced by one that starts at zero."""

from dataclasses import fields, replace

from replicas.engine_stats import EngineStats
from replicas.memory.tier_stats import TIER_TOTALS
from replicas.speculation.stats import SpeculationStats

_TOTALS = tuple(field.name for field in fields(EngineStats) if field.name.endswith("_total"))


class LifetimeTotals:
    """The totals of the cores that ended."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._tiers_before: dict[str, float] = {}
        self._speculation_before = SpeculationStats()

    def end_core(self, last: EngineStats) -> None:
        """A core ended; `last` is its own last snapshot."""
        self._before = {name: self._before.get(name, 0) + getattr(last, name) for name in _TOTALS}
        self._tiers_before = {
            name: self._tiers_before.get(name, 0) + getattr(last.tiers, name)
            for name in TIER_TOTALS
        }
        self._speculation_before = last.speculation.after(self._speculation_before)

    def over(self, stats: EngineStats) -> EngineStats:
        """The running core's snapshot with totals over all cores."""
        if not self._before:
            return stats
        sums = {name: self._before[name] + getattr(stats, name) for name in _TOTALS}
        tiers = {
            name: self._tiers_before[name] + getattr(stats.tiers, name) for name in TIER_TOTALS
        }
        return replace(
            stats,
            **sums,
            tiers=replace(stats.tiers, **tiers),
            speculation=stats.speculation.after(self._speculation_before),
        )
