"""Writes the comparison as Markdown: the table with what was promised, and how it was measured."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cluster.bench.peers.arms import ARMS
from cluster.bench.peers.plan import Plan
from cluster.bench.peers.results import Results
from cluster.bench.peers.rows import Row
from cluster.bench.peers.summary import RowSummary, Spread, summarise

BEGIN = "<!-- peers: written by `python -m cluster.bench.peers report RESULTS --write THIS` -->"
END = "<!-- peers: end -->"

_HEAD = ("", "beside", "", "ours", "theirs", "ratio", "floor", "aim", "rounds")
_LONGEST_REASON = 300
_NOTHING = "-"


def report(results: Results, rows: Iterable[Row], plan: Plan, plots: Sequence[str] = ()) -> str:
    """The whole page. plots: files of plots, beside the page."""
    summaries = [summarise(row, results, plan) for row in rows]
    parts = [
        "## Beside other engines",
        _machine(results),
        comparison_table(summaries) if summaries else "",
        _how(summaries, results, plan) if summaries else "",
        growth_section(results.growth, plots) if results.growth else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def with_report(document: str, page: str) -> str:
    """The document with the page between its two marks. Raises ValueError where they are not."""
    before, begin, rest = document.partition(BEGIN)
    _old, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected a document with the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{page}\n{END}{after}"


def comparison_table(summaries: Iterable[RowSummary]) -> str:
    """One line a row: medians, with ranges behind them, and the median of the rounds' ratios."""
    lines = [_line(_HEAD), _line(["---"] * len(_HEAD))]
    lines += [_line(_cells(summary)) for summary in summaries]
    return "\n".join(lines)


def growth_section(growth: Mapping[str, Any], plots: Sequence[str]) -> str:
    """The plots, and the table that replicas.bench.growth made of the same figures."""
    drawn = "\n".join(f"![{plot}]({plot})" for plot in plots)
    return "\n\n".join(part for part in ("## Growth", drawn, growth["table"]) if part)


def _cells(summary: RowSummary) -> list[str]:
    row = summary.row
    return [
        row.title,
        ARMS[row.theirs].title,
        row.figure.unit,
        _values(summary.ours),
        _values(summary.theirs),
        _ratio(summary),
        _bound(f"{row.floor:g} x" if row.floor is not None else "", summary.floor_is_met),
        _bound(_aim(row), summary.aim_is_met),
        str(summary.num_rounds) if summary.num_rounds else summary.absence[:_LONGEST_REASON],
    ]


def _values(spread: Spread | None) -> str:
    if spread is None:
        return _NOTHING
    return f"{_number(spread.median)} ({_number(spread.lowest)} to {_number(spread.highest)})"


def _ratio(summary: RowSummary) -> str:
    ratios = summary.ratios
    if ratios is None:
        return _NOTHING
    mark = ", disturbed" if summary.is_disturbed else ""
    return f"**{ratios.median:.2f}** ({ratios.lowest:.2f} to {ratios.highest:.2f}){mark}"


def _aim(row: Row) -> str:
    if row.aim_value is not None:
        return f"{row.aim_value:g} {row.figure.unit}"
    return f"{row.aim:g} x" if row.aim is not None else ""


def _bound(text: str, is_met: bool | None) -> str:
    if is_met is None:
        return text
    return f"{text} {'met' if is_met else 'missed'}"


def _number(value: float) -> str:
    """Three or four digits that mean something."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _machine(results: Results) -> str:
    machine = results.machine
    return (
        f"{machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB; Linux {machine['kernel']}; {machine['date']}; "
        f"commit {machine['commit']}. Repeat with `{machine['command']}`."
    )


def _how(summaries: Sequence[RowSummary], results: Results, plan: Plan) -> str:
    few = results.choices.get("max_requests")
    disturbed = sum(summary.num_disturbed for summary in summaries)
    return (
        f"Arms in turn, {plan.rounds} rounds asked for, each turn a fresh process with a warm-up "
        "before each workload; median, range, and the median of the ratios within a round. "
        f"{results.choices['kv_gib']} GiB for K and V everywhere. A run beside more than "
        f"{plan.max_foreign_cores:g} cores of other processes' work counts for nothing and is "
        f"repeated at most {plan.max_attempts - 1} times ({disturbed} of these rows' runs were "
        f"such). Versions: {_versions(results)}."
        + (f" Only the first {few} requests of each workload." if few else "")
    )


def _versions(results: Results) -> str:
    found: dict[str, set[str]] = {}
    for turn in results.turns:
        for package, number in turn.versions.items():
            found.setdefault(package, set()).add(number)
    return ", ".join(f"{package} {' and '.join(sorted(of))}" for package, of in found.items())


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
