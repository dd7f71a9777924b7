"""Ratios are taken within a round, disturbed runs count for nothing, and bounds know their side."""

import dataclasses

import pytest

from cluster.bench.peers.plan import Plan
from cluster.bench.peers.results import Results, TurnResult, WorkloadRun
from cluster.bench.peers.rows import Row, rows_of
from cluster.bench.peers.summary import Spread, summarise

PLAN = Plan({}, rounds=3)
(RATE, *_), (TPOT, *_) = rows_of(["w1"]), rows_of(["w4"])


def turn(arm: str, number: int, row: Row, value: float, *, attempt: int = 1, foreign: float = 0.0):
    run = WorkloadRun(row.workload, 0.0, 1.0, {row.figure.key: value}, foreign)
    return TurnResult(arm, number, attempt, (row.workload,), (run,))


def results_of(row: Row, ours: list[float], theirs: list[float]) -> Results:
    turns = [turn(row.ours, number, row, value) for number, value in enumerate(ours, 1)]
    turns += [turn(row.theirs, number, row, value) for number, value in enumerate(theirs, 1)]
    return Results({}, {}, turns=turns)


def test_the_ratio_is_the_median_of_the_rounds_ratios_not_of_the_medians():
    summary = summarise(RATE, results_of(RATE, [100, 300, 600], [100, 200, 100]), PLAN)
    assert summary.ours == Spread(300, 100, 600)
    assert summary.theirs == Spread(100, 100, 200)
    assert summary.ratios == Spread(1.5, 1.0, 6.0)
    assert summary.num_rounds == 3


def test_a_round_in_which_one_arm_is_missing_has_no_ratio():
    summary = summarise(RATE, results_of(RATE, [150, 150, 150], [100]), PLAN)
    assert (summary.num_rounds, summary.ratios) == (1, Spread(1.5, 1.5, 1.5))


def test_a_disturbed_run_gives_way_to_its_repetition():
    results = results_of(RATE, [130], [100])
    results.turns.insert(0, turn(RATE.ours, 1, RATE, 50, attempt=1, foreign=0.9))
    results.turns[1] = dataclasses.replace(results.turns[1], attempt=2)
    summary = summarise(RATE, results, PLAN)
    assert summary.ratios == Spread(1.3, 1.3, 1.3)
    assert (summary.num_disturbed, summary.is_disturbed) == (1, False)


def test_disturbed_runs_are_shown_as_such_where_there_are_no_others():
    results = Results({}, {})
    results.turns = [turn(RATE.ours, 1, RATE, 80, foreign=0.9), turn(RATE.theirs, 1, RATE, 100)]
    summary = summarise(RATE, results, PLAN)
    assert summary.ratios == Spread(0.8, 0.8, 0.8)
    assert (summary.is_disturbed, summary.floor_is_met) == (True, None)


def test_a_disturbed_run_alone_is_no_figure_and_says_so():
    results = Results({}, {}, turns=[turn(RATE.ours, 1, RATE, 80, foreign=0.9)])
    summary = summarise(RATE, results, PLAN)
    assert (summary.ours, summary.absence) == (None, "pagoda ran only disturbed; vllm not measured")


@pytest.mark.parametrize(("ratio", "floor", "aim"), [(1.2, False, False), (1.25, True, False)])
def test_more_is_better_for_a_rate(ratio, floor, aim):
    summary = summarise(RATE, results_of(RATE, [100 * ratio], [100]), PLAN)
    assert (summary.floor_is_met, summary.aim_is_met) == (floor, aim)


@pytest.mark.parametrize(("ratio", "floor", "aim"), [(0.7, False, False), (0.5, True, False)])
def test_less_is_better_for_a_time(ratio, floor, aim):
    summary = summarise(TPOT, results_of(TPOT, [10 * ratio], [10]), PLAN)
    assert (summary.floor_is_met, summary.aim_is_met) == (floor, aim)


def test_an_aim_may_be_a_value_of_our_own():
    (row,) = rows_of(["start"])
    summary = summarise(row, results_of(row, [14.0], [70.0]), PLAN)
    assert summary.aim_is_met
    assert not summarise(row, results_of(row, [16.0], [70.0]), PLAN).aim_is_met


def test_bytes_are_shown_in_the_unit_of_the_row():
    row = rows_of(["memory"])[0]
    summary = summarise(row, results_of(row, [2**30], [2**31]), PLAN)
    assert summary.ours == Spread(1024, 1024, 1024)
    assert summary.ratios == Spread(0.5, 0.5, 0.5)


def test_a_peer_that_is_missing_is_named_with_the_reason():
    results = results_of(RATE, [100], [])
    results.absent["vllm"] = "not installed"
    summary = summarise(RATE, results, PLAN)
    assert (summary.absence, summary.floor_is_met) == ("vllm not installed", None)


def test_a_peer_that_failed_is_named_with_its_last_words():
    results = results_of(RATE, [100], [])
    results.turns.append(TurnResult("vllm", 1, 1, ("W1",), error="ended with status 1: no memory"))
    assert "vllm failed: ended with status 1" in summarise(RATE, results, PLAN).absence
