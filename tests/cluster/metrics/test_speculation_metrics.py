"""What guesses gain is told under vLLM's names, and goes on over engine cores."""

from cluster.metrics.figures import Figures
from cluster.metrics.lifetime_totals import LifetimeTotals
from cluster.metrics.speculation_metrics import show_speculation
from replicas.engine_stats import EngineStats
from replicas.speculation.stats import SpeculationStats

FIRST = SpeculationStats(
    num_drafts_total=5,
    num_draft_tokens_total=20,
    num_accepted_tokens_total=12,
    accepted_per_position=(5, 4, 2, 1),
)


def shown(stats: SpeculationStats) -> dict[tuple[str, tuple[str, ...]], float]:
    figures = Figures("replica")
    show_speculation(figures, stats)
    return {(one.name, one.labels): one.value for one in figures.series()}


def test_every_total_bears_the_name_that_vllm_gives_it():
    found = shown(FIRST)
    assert found["vllm:spec_decode_num_drafts", ()] == 5
    assert found["vllm:spec_decode_num_draft_tokens", ()] == 20
    assert found["vllm:spec_decode_num_accepted_tokens", ()] == 12
    places = [found["vllm:spec_decode_num_accepted_tokens_per_pos", (f"{n}",)] for n in range(4)]
    assert places == [5, 4, 2, 1]


def test_without_guesses_the_totals_are_there_and_zero():
    found = shown(SpeculationStats())
    assert found["vllm:spec_decode_num_drafts", ()] == 0


def test_totals_go_on_in_the_next_engine_core():
    totals = LifetimeTotals()
    totals.end_core(EngineStats(speculation=FIRST))
    totals.end_core(EngineStats(speculation=FIRST))
    last = SpeculationStats(1, 2, 1, (1,))
    found = totals.over(EngineStats(speculation=last)).speculation
    assert found == SpeculationStats(11, 42, 25, (11, 8, 4, 2))
