"""Puts a report's numbers into tables, tiles and notes."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from loadtest.report.run_view import METRICS, RunView

METRIC_WORDS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}
Format = Callable[[float], str]

COUNT: Format = "{:,.0f}".format
RATE: Format = "{:,.3g}".format
TENTH: Format = "{:,.1f}".format
SHARE: Format = "{:.1%}".format
MS: Format = "{:,.1f}".format

COUNT_ROWS: tuple[tuple[str, str, Format], ...] = (
    ("completed", "finished requests", COUNT),
    ("failed", "failed requests", COUNT),
    ("cancelled", "cancelled requests", COUNT),
    ("duration", "measured time, s", TENTH),
    ("request_throughput", "requests/s", RATE),
    ("request_goodput", "goodput, requests/s", RATE),
    ("goodput_attainment", "share within limits", SHARE),
    ("output_throughput", "output tokens/s", TENTH),
    ("total_token_throughput", "all tokens/s", TENTH),
    ("max_output_tokens_per_s", "peak output tokens/s", TENTH),
    ("max_concurrent_requests", "most in flight", COUNT),
    ("total_input_tokens", "prompt tokens", COUNT),
    ("total_output_tokens", "output tokens", COUNT),
    ("total_cached_tokens", "prompt tokens from cache", COUNT),
)
SETTINGS = (
    "dataset",
    "arrivals",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "num_prompts",
    "seed",
    "num_processes",
    "backend",
    "tokenizer_id",
    "prompt_lengths_from",
    "output_tokens_from",
    "driver_cpu_ratio",
)
NARROW_PERCENTILES = ("p50", "p90", "p95", "p99")


def tiles_of(run: RunView) -> str:
    """The handful of numbers that are looked for first."""
    wanted = [
        ("TTFT p50 / p99, ms", _pair(run, "ttft")),
        ("TPOT p50 / p99, ms", _pair(run, "tpot")),
        ("output tokens/s", _cell(run.number("output_throughput"), TENTH)),
        ("requests/s", _cell(run.number("request_throughput"), RATE)),
        ("goodput, requests/s", _cell(run.number("request_goodput"), RATE)),
        ("within limits", _cell(run.number("goodput_attainment"), SHARE)),
    ]
    tiles = "".join(
        f"<div><b>{value}</b><span>{escape(name)}</span></div>"
        for name, value in wanted
        if value.strip("– /")
    )
    return f'<div class="tiles">{tiles}</div>'


def notes_of(runs: Sequence[RunView]) -> list[str]:
    """What a reader must know before believing the numbers."""
    notes = []
    for run in runs:
        prefix = f"{run.name}: " if len(runs) > 1 else ""
        if run.figures.get("driver_kept_up") is False:
            notes.append(f"{prefix}Doubtful: {run.figures['driver_detail']}.")
        saturation = run.figures.get("saturation") or {"kind": "none"}
        if saturation["kind"] != "none":
            kind = saturation["kind"].replace("_", " ")
            notes.append(f"{prefix}Saturated ({kind}): {saturation['detail']}.")
        errors = run.figures.get("errors_by_class") or {}
        if errors:
            words = ", ".join(f"{name} {count}" for name, count in errors.items())
            notes.append(f"{prefix}Failures: {words}.")
        if run.figures.get("was_stopped"):
            notes.append(f"{prefix}Interrupted before its end.")
    return notes


def figure_table(runs: Sequence[RunView]) -> str:
    """Figures as rows, runs as columns."""
    rows = [_row(runs, name, key, form) for key, name, form in COUNT_ROWS]
    for metric in METRICS:
        keys = [f"mean_{metric}_ms", *(f"{p}_{metric}_ms" for p in NARROW_PERCENTILES)]
        for key, word in zip(keys, ("mean", *NARROW_PERCENTILES), strict=True):
            rows.append(_row(runs, f"{METRIC_WORDS[metric]} {word}, ms", key, MS))
    rows.append(_lag_row(runs))
    return _table(runs, rows, kind="numbers")


def setting_table(runs: Sequence[RunView]) -> str:
    """How each run was made, so that it can be made again."""
    rows = []
    for key in SETTINGS:
        cells = [run.figures.get(key) for run in runs]
        if any(cell is not None for cell in cells):
            rows.append(_cells(key.replace("_", " "), [_word(cell) for cell in cells]))
    limits = [run.figures.get("goodput_config_ms") for run in runs]
    if any(limits):
        words = [", ".join(f"{k} {v:g} ms" for k, v in (one or {}).items()) for one in limits]
        rows.append(_cells("limits", words))
    return _table(runs, rows, kind="words")


def _row(runs: Sequence[RunView], name: str, key: str, form: Format) -> str:
    values = [run.number(key) for run in runs]
    if all(value is None for value in values):
        return ""
    return _cells(name, [_cell(value, form) for value in values])


def _lag_row(runs: Sequence[RunView]) -> str:
    lags = [(run.figures.get("schedule_lag_ms") or {}).get("p99") for run in runs]
    if all(lag is None for lag in lags):
        return ""
    return _cells("driver's send lag p99, ms", [_cell(lag, "{:,.2f}".format) for lag in lags])


def _cells(name: str, words: Sequence[str]) -> str:
    cells = "".join(f"<td>{escape(word)}</td>" for word in words)
    return f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'


def _table(runs: Sequence[RunView], rows: Sequence[str], *, kind: str) -> str:
    heads = "".join(f'<th scope="col">{escape(run.name)}</th>' for run in runs)
    head = f"<thead><tr><td></td>{heads}</tr></thead>" if len(runs) > 1 else ""
    body = f"{head}<tbody>{''.join(rows)}</tbody>"
    return f'<div class="wide"><table class="{kind}">{body}</table></div>'


def _pair(run: RunView, metric: str) -> str:
    median = _cell(run.number(f"median_{metric}_ms"), MS)
    return f"{median} / {_cell(run.number(f'p99_{metric}_ms'), MS)}"


def _cell(value: float | None, form: Format) -> str:
    return "–" if value is None else form(value)


def _word(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)
