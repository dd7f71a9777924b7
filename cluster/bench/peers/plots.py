"""Draws how throughput, scheduling and prompts grow, as SVG files beside the report."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_SIZE_INCHES = (6.4, 4.0)


class NoPlots(RuntimeError):
    """matplotlib is not installed."""


def draw_growth(growth: Mapping[str, Any], folder: Path) -> list[str]:
    """Write the plots into `folder` and return their names. Raises NoPlots."""
    try:
        # By name: whoever serves does not need it.
        matplotlib = importlib.import_module("matplotlib")
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ModuleNotFoundError as error:
        raise NoPlots(f"plots need matplotlib: {error}") from error
    # Text stays text: smaller files, and a reader's own fonts. Equal figures give equal files.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "growth"})
    decode = growth["decode"]
    drawn = {
        "growth-throughput.svg": (
            _by_context(decode, lambda cell: cell["num_requests"] / cell["step_s"]),
            ("running requests", "output tokens/s"),
        ),
        "growth-scheduler.svg": (
            _by_context(decode, lambda cell: 1e6 * cell["scheduler_s"]),
            ("running requests", "microseconds of scheduling a step"),
        ),
        "growth-prompts.svg": (
            {
                "one prompt alone": [
                    (one["prompt_tokens"], one["prompt_tokens"] / one["seconds"])
                    for one in growth["prompts"]
                ]
            },
            ("prompt tokens", "prompt tokens/s"),
        ),
    }
    for name, (series, axes) in drawn.items():
        _draw(pyplot, series, axes, folder / name)
    return list(drawn)


Series = dict[str, list[tuple[float, float]]]


def _by_context(decode: list[Mapping[str, Any]], value: Callable[[Any], float]) -> Series:
    """A line for each context, its points by running requests."""
    series: Series = {}
    for cell in sorted(decode, key=lambda one: (one["context_tokens"], one["num_requests"])):
        name = f"context {cell['context_tokens']:,} tokens"
        series.setdefault(name, []).append((cell["num_requests"], value(cell)))
    return series


def _draw(pyplot: Any, series: Series, axes: tuple[str, str], path: Path) -> None:
    figure, plot = pyplot.subplots(figsize=_SIZE_INCHES, layout="constrained")
    for name, points in series.items():
        plot.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
    plot.set_xscale("log", base=2)
    plot.set_ylim(bottom=0)
    plot.set_xlabel(axes[0])
    plot.set_ylabel(axes[1])
    plot.xaxis.set_major_formatter("{x:.0f}")
    plot.grid(visible=True, alpha=0.3)
    plot.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
