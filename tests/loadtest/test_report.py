"""The report is one page that needs nothing from outside and shows what the results say."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from loadtest.__main__ import main
from loadtest.report import render_report
from loadtest.report.scale import linear_scale, log_scale, short_number
from loadtest.report.svg_plot import Plot, Series


def result(**more: Any) -> dict[str, Any]:
    quantiles = [float(q) for q in range(1, 102)]
    return {
        "date": "20261129-120000",
        "backend": "openai",
        "label": "base",
        "model_id": "m",
        "request_rate": 4.0,
        "completed": 10,
        "request_throughput": 3.9,
        "median_ttft_ms": 81.25,
        "p99_ttft_ms": 240.5,
        "distributions_ms": dict.fromkeys(("ttft", "tpot", "itl", "e2el"), quantiles),
        "ttft_ms_by_prompt_tokens": [[10, 50.0], [20, 60.0]],
        "goodput_config_ms": {"ttft": 60.0},
        "timeline": {
            "bucket_s": 1.0,
            "arrival_rate": [1.0, 2.0],
            "finish_rate": [0.0, 2.0],
            "output_tokens_per_s": [5.0, 9.0],
            "concurrency": [1.0, 1.5],
            "ttft_ms": [50.0, None],
        },
        **more,
    }


CAPACITY = {
    "probes": [
        {"rate_rps": 1.0, "goodput_rps": 1.0, "attainment": 1.0, "saturation": "none"},
        {"rate_rps": 2.0, "goodput_rps": 0.8, "attainment": 0.4, "saturation": "none"},
    ],
    "best": {"rate_rps": 1.0, "goodput_rps": 1.0, "attainment": 1.0, "saturation": "none"},
    "target_attainment": 0.9,
}


class Balance(HTMLParser):
    """Fails on a tag that is closed in the wrong order."""

    VOID = ("meta", "line", "circle", "path")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_report_asks_for_nothing_from_outside() -> None:
    page = render_report([result()])
    assert not re.search(r"https?://|//cdn|<script|<link|@import|url\(", page)
    balance = Balance()
    balance.feed(page)
    assert balance.open == []


def test_every_plot_is_drawn_with_its_axes_named() -> None:
    page = render_report([result(capacity=CAPACITY)])
    assert page.count("<svg") == 11
    for words in ("Time to first token", "prompt tokens", "Requests in flight", "limit 60 ms"):
        assert words in page


def test_runs_side_by_side_have_columns_and_colours_of_their_own() -> None:
    page = render_report([result(label="before"), result(label="after")])
    assert page.index(">before</th>") < page.index(">after</th>")
    assert 'class="line c0"' in page
    assert 'class="line c1"' in page


def test_runs_of_one_label_are_told_apart_by_rate_or_number() -> None:
    page = render_report([result(), result(request_rate=8.0), result(request_rate=8.0)])
    for name in ("base @ 4/s", "base @ 8/s #1", "base @ 8/s #2"):
        assert name in page


def test_warnings_come_first() -> None:
    page = render_report(
        [
            result(
                saturation={"kind": "growing_backlog", "detail": "it grew"},
                errors_by_class={"http_503": 4},
            )
        ]
    )
    assert "Saturated (growing backlog): it grew." in page
    assert "http_503 4" in page
    assert "Doubtful" not in page
    late = render_report([result(driver_kept_up=False, driver_detail="it was late")])
    assert "Doubtful: it was late." in late
    assert page.index("it grew") < page.index("<svg")


def test_names_from_a_result_cannot_break_the_page() -> None:
    page = render_report([result(label='<script>alert("x")</script>')])
    assert "<script" not in page


def test_a_result_of_vllms_benchmark_is_shown_as_far_as_it_goes() -> None:
    plain = {"backend": "vllm", "date": "x", "model_id": "m", "completed": 2, "mean_ttft_ms": 5.0}
    assert "<svg" not in render_report([plain])
    lists = {"ttfts": [0.1, 0.2, 0.0], "itls": [[0.01], [0.02], []], "input_lens": [5, 6, 7]}
    assert render_report([{**plain, **lists}]).count("<svg") == 3


def test_the_command_reads_several_files_and_appended_lines(tmp_path: Path) -> None:
    one, two, page = tmp_path / "a.json", tmp_path / "b.jsonl", tmp_path / "out" / "r.html"
    one.write_text(json.dumps(result(label="one")))
    two.write_text("".join(json.dumps(result(label=label)) + "\n" for label in ("two", "three")))
    assert main(["report", str(one), str(two), "-o", str(page)]) == 0
    assert all(f">{label}</th>" in page.read_text() for label in ("one", "two", "three"))


def test_a_file_that_is_no_result_is_an_error(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{not json")
    assert main(["report", str(bad), "-o", str(tmp_path / "r.html")]) == 1


@pytest.mark.parametrize(("low", "high"), [(0.0, 7.3), (0.0, 0.002), (0.0, 123456.0), (3.0, 3.0)])
def test_linear_ticks_are_round_and_inside(low: float, high: float) -> None:
    scale = linear_scale(low, high, 0, 100)
    ticks = scale.ticks(5)
    assert 3 <= len(ticks) <= 9
    assert all(scale.low <= tick <= scale.high for tick in ticks)


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.5), (9.0, 12.0), (1.0, 900.0), (0.01, 1e5)])
def test_log_ticks_rise_and_stay_few(low: float, high: float) -> None:
    ticks = log_scale(low, high, 0, 100).ticks(6)
    assert ticks == sorted(set(ticks))
    assert 2 <= len(ticks) <= 9


def test_numbers_on_axes_are_short() -> None:
    assert [short_number(x) for x in (0, 0.25, 12, 1500, 25_000, 2e6)] == [
        "0",
        "0.25",
        "12",
        "1500",
        "25k",
        "2M",
    ]


def test_a_line_breaks_where_a_value_is_missing() -> None:
    points = [(0.0, 1.0), (1.0, float("nan")), (2.0, 3.0)]
    svg = Plot("t", "x", "y", [Series("a", points, 0)]).svg()
    (path,) = re.findall(r' d="([^"]+)"', svg)
    assert path.count("M") == 2
