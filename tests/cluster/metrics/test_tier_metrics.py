"""Every total of the tiers and of the store's client arrives under a name of the catalogue."""

from dataclasses import fields

from cluster.metrics.figures import Figures
from cluster.metrics.lifetime_totals import LifetimeTotals
from cluster.metrics.tier_catalogue import TIER_METRICS
from cluster.metrics.tier_metrics import show_store, show_tiers
from kvstore.store_stats import StoreStats
from replicas.engine_stats import EngineStats
from replicas.memory.tier_stats import TIER_TOTALS, TierStats


def numbered_tiers() -> TierStats:
    return TierStats(**{field.name: 100 + i for i, field in enumerate(fields(TierStats))})


def shown(figures: Figures) -> dict[tuple[str, tuple[str, ...]], float]:
    return {(one.name, one.labels): one.value for one in figures.series()}


def test_every_total_of_the_tiers_is_shown():
    figures = Figures("replica")
    tiers = numbered_tiers()
    show_tiers(figures, EngineStats(tiers=tiers, hit_tokens_total=1000))
    values = set(shown(figures).values())
    hidden = {name for name in TIER_TOTALS if getattr(tiers, name) not in values}
    # The store's own client counts these, and more exactly.
    assert hidden == {"stored_blocks_total", "fetched_blocks_total"}


def test_hits_of_the_device_are_those_of_no_lower_tier():
    figures = Figures("replica")
    tiers = TierStats(host_hit_tokens_total=20, store_hit_tokens_total=30)
    show_tiers(figures, EngineStats(tiers=tiers, hit_tokens_total=100))
    found = shown(figures)
    assert found["pagoda:tier_hit_tokens", ("device",)] == 50
    assert found["pagoda:tier_hit_tokens", ("host",)] == 20
    assert found["pagoda:tier_hit_tokens", ("store",)] == 30


def test_the_slots_of_host_memory_are_shown_by_what_they_hold():
    figures = Figures("replica")
    tiers = TierStats(num_host_slots=10, num_held_host_slots=7, num_pinned_host_slots=3)
    show_tiers(figures, EngineStats(tiers=tiers))
    found = shown(figures)
    kinds = [found["pagoda:host_slots", (kind,)] for kind in ("free", "cached", "pinned")]
    assert kinds == [3, 4, 3]


def test_every_metric_of_the_tiers_gets_a_value():
    figures = Figures("replica")
    show_tiers(figures, EngineStats(tiers=numbered_tiers(), hit_tokens_total=1000))
    show_store(figures, StoreStats(errors={"timeout": 2}))
    names = {name for name, _labels in shown(figures)}
    assert {metric.name for metric in TIER_METRICS} <= names


def test_errors_of_the_store_are_shown_by_kind():
    figures = Figures("replica")
    show_store(figures, StoreStats(errors={"timeout": 2, "damaged": 1}, is_open=True))
    found = shown(figures)
    assert found["pagoda:store_errors", ("timeout",)] == 2
    assert found["pagoda:store_errors", ("damaged",)] == 1
    assert found["pagoda:store_is_away", ()] == 1.0


def test_totals_of_the_tiers_go_on_when_a_core_is_replaced():
    totals = LifetimeTotals()
    totals.end_core(EngineStats(tiers=TierStats(num_host_slots=9, swaps_total=5)))
    now = totals.over(EngineStats(tiers=TierStats(num_host_slots=4, swaps_total=2)))
    assert now.tiers.swaps_total == 7
    assert now.tiers.num_host_slots == 4
