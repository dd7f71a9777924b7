"""Chooses the plots of a report: what users felt, over time, and against the load."""

import math
from collections.abc import Sequence

from loadtest.report.run_view import RunView
from loadtest.report.svg_plot import Mark, Plot, Series

METRIC_TITLES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "itl": "Inter-token latency",
    "e2el": "End to end",
}
# The last hundredth reaches far right in any long run and would squeeze the rest.
HIGHEST_PERCENTILE = 99


def latency_plots(runs: Sequence[RunView]) -> list[Plot]:
    """The share of requests (of gaps, for ITL) at or below each latency, per metric."""
    plots = []
    for metric, title in METRIC_TITLES.items():
        series = [
            Series(run.name, _cdf(run.quantiles_ms[metric]), colour)
            for colour, run in enumerate(runs)
            if run.quantiles_ms.get(metric)
        ]
        what = "gaps" if metric == "itl" else "requests"
        plots.append(
            Plot(
                f"{title}: share of {what} at or below",
                "milliseconds (up to p99)",
                f"share of {what}",
                series,
                _limit_marks(runs, metric),
                x_is_log=True,
                y_top=1.0,
                y_is_share=True,
            )
        )
    return plots


def prompt_plot(runs: Sequence[RunView]) -> Plot:
    """TTFT of each request against its prompt's length."""
    series = [
        Series(run.name, run.scatter, colour, "dots")
        for colour, run in enumerate(runs)
        if run.scatter
    ]
    return Plot("Time to first token by prompt length", "prompt tokens", "TTFT, ms", series)


def time_plots(runs: Sequence[RunView]) -> list[Plot]:
    """Tokens, concurrency, requests and TTFT over the time of the run."""
    return [
        _over_time(runs, "Output throughput", "tokens/s", "output_tokens_per_s"),
        _over_time(runs, "Requests in flight", "requests", "concurrency"),
        _requests_over_time(runs),
        _over_time(runs, "Median TTFT of the requests sent at each moment", "ms", "ttft_ms"),
    ]


def capacity_plots(runs: Sequence[RunView]) -> list[Plot]:
    """Goodput and attainment against the rate asked for, where a capacity was searched."""
    goodput, attainment, marks = [], [], []
    for colour, run in enumerate(runs):
        if not run.capacity:
            continue
        probes = sorted(run.capacity["probes"], key=lambda probe: probe["rate_rps"])
        goodput.append(
            Series(run.name, [(p["rate_rps"], p["goodput_rps"]) for p in probes], colour, DOTTED)
        )
        attainment.append(
            Series(run.name, [(p["rate_rps"], p["attainment"]) for p in probes], colour, DOTTED)
        )
        if run.capacity["best"]:
            rate = run.capacity["best"]["rate_rps"]
            marks.append(Mark(rate, f"highest {rate:.3g}/s"))
    targets = {run.capacity["target_attainment"] for run in runs if run.capacity}
    lines = [Mark(target, f"target {target:.0%}", is_vertical=False) for target in targets]
    rate_name = "requests/s asked for"
    return [
        Plot("Goodput against rate", rate_name, "good requests/s", goodput, marks),
        Plot(
            "Share within limits against rate",
            rate_name,
            "share of requests",
            attainment,
            [*lines, *marks],
            y_top=1.0,
            y_is_share=True,
        ),
    ]


DOTTED = "line-and-dots"


def _cdf(quantiles: Sequence[float]) -> list[tuple[float, float]]:
    kept = quantiles[: HIGHEST_PERCENTILE + 1]
    return [(max(value, 1e-3), place / 100.0) for place, value in enumerate(kept)]


def _limit_marks(runs: Sequence[RunView], metric: str) -> list[Mark]:
    limits = {
        float(limits[metric])
        for run in runs
        if metric in (limits := run.figures.get("goodput_config_ms") or {})
    }
    return [Mark(limit, f"limit {limit:g} ms") for limit in sorted(limits)]


def _over_time(runs: Sequence[RunView], title: str, unit: str, key: str) -> Plot:
    series = [
        Series(run.name, _steps(run, key), colour)
        for colour, run in enumerate(runs)
        if run.timeline
    ]
    return Plot(title, "seconds", unit, series)


def _requests_over_time(runs: Sequence[RunView]) -> Plot:
    series = []
    for colour, run in enumerate(runs):
        if run.timeline:
            arrivals = _steps(run, "arrival_rate")
            series.append(Series(f"{run.name}: sent", arrivals, colour, is_faint=True))
            series.append(Series(f"{run.name}: finished", _steps(run, "finish_rate"), colour))
    return Plot("Requests sent (thin) and finished (bold)", "seconds", "requests/s", series)


def _steps(run: RunView, key: str) -> list[tuple[float, float]]:
    assert run.timeline is not None
    width_s = run.timeline["bucket_s"]
    values = run.timeline[key]
    return [
        ((index + 0.5) * width_s, math.nan if value is None else value)
        for index, value in enumerate(values)
    ]
