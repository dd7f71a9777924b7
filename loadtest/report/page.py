"""Lays the report out as one HTML page without outside assets, for dark, light and phones."""

from collections.abc import Sequence
from datetime import datetime
from html import escape

from loadtest.report.charts import capacity_plots, latency_plots, prompt_plot, time_plots
from loadtest.report.run_view import RunView
from loadtest.report.style import STYLE
from loadtest.report.svg_plot import NUM_COLOURS, Plot
from loadtest.report.tables import figure_table, notes_of, setting_table, tiles_of


def render_page(runs: Sequence[RunView]) -> str:
    """The whole page for one or more runs."""
    title = "Load test: " + ", ".join(run.name for run in runs)
    sections = [
        _head(runs),
        *(f'<p class="note">{escape(note)}</p>' for note in notes_of(runs)),
        tiles_of(runs[0]) if len(runs) == 1 else "",
        _section("Highest goodput", capacity_plots(runs)),
        _section("Latency", latency_plots(runs)),
        _section("Over time", time_plots(runs)),
        _section("By prompt length", [prompt_plot(runs)]),
        f"<h2>Figures</h2>{figure_table(runs)}",
        f"<h2>Settings</h2>{setting_table(runs)}",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _head(runs: Sequence[RunView]) -> str:
    models = sorted({str(run.figures.get("model_id", "")) for run in runs})
    dates = sorted({_readable(str(run.figures.get("date", ""))) for run in runs})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return (
        f"<header><h1>Load test</h1><p>{escape(', '.join(models))} · {escape(when)}</p>"
        f"{legend(runs)}</header>"
    )


def _readable(date: str) -> str:
    """vLLM's compact date as people write it; anything else as it is."""
    try:
        return datetime.strptime(date, "%Y%m%d-%H%M%S").strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return date


def legend(runs: Sequence[RunView]) -> str:
    """The runs' names with their colours."""
    items = "".join(
        f'<li><i class="c{index % NUM_COLOURS}"></i>{escape(run.name)}</li>'
        for index, run in enumerate(runs)
    )
    return f'<ul class="legend">{items}</ul>'


def _section(title: str, plots: Sequence[Plot]) -> str:
    drawn = [(plot.title, svg) for plot in plots if (svg := plot.svg())]
    if not drawn:
        return ""
    figures = "".join(
        f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>"
        for caption, svg in drawn
    )
    return f'<h2>{escape(title)}</h2><div class="plots">{figures}</div>'
