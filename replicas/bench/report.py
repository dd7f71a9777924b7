"""From runs to figures, and from figures to a table and a JSON file."""

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from replicas.bench.measure import Run
from replicas.bench.static_baseline import StaticRun

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """All passes over one workload: the figures of each, in order."""

    name: str
    passes: tuple[Figures, ...]

    def median(self, figure: str) -> float:
        """Over the passes."""
        return statistics.median(one[figure] for one in self.passes)

    def spread(self, figure: str) -> float:
        """Largest less smallest over the median, 0 for a median of 0."""
        values = [one[figure] for one in self.passes]
        middle = statistics.median(values)
        return (max(values) - min(values)) / middle if middle else 0.0


def figures_of(run: Run, *, max_model_len: int) -> Figures:
    """What one pass over a workload showed; times in seconds or milliseconds as named."""
    tpots = run.tpots_s() or [0.0]
    ttfts = run.ttfts_s()
    steps = np.array([step.run_s for step in run.steps])
    return {
        "seconds": run.seconds,
        "steps": len(run.steps),
        "output_tokens_per_s": run.output_tokens_per_s,
        "prompt_tokens_per_s": run.computed_prompt_tokens / run.seconds,
        "computed_prompt_tokens": run.computed_prompt_tokens,
        "ttft_mean_ms": 1e3 * float(np.mean(ttfts)),
        "ttft_p99_ms": 1e3 * float(np.percentile(ttfts, 99)),
        "tpot_p50_ms": 1e3 * float(np.percentile(tpots, 50)),
        "tpot_p99_ms": 1e3 * float(np.percentile(tpots, 99)),
        "step_p50_ms": 1e3 * float(np.percentile(steps, 50)),
        "step_p99_ms": 1e3 * float(np.percentile(steps, 99)),
        "occupancy_while_queued": run.occupancy_while_queued(),
        "kv_waste": run.waste(),
        "kv_waste_reserved": run.reserved_waste(max_model_len),
        "planning_share": run.planning_share(),
        "preemptions": run.num_preemptions,
    }


def static_figures(continuous: Run, static: StaticRun, promised: float) -> Figures:
    """Continuous against static batching on the same requests.

    promised: the gain that the two schedules' step counts promise.
    """
    gain = continuous.output_tokens_per_s / static.output_tokens_per_s
    return {
        "static_tokens_per_s": static.output_tokens_per_s,
        "static_steps": static.num_steps,
        "gain_over_static": gain,
        "promised_gain": promised,
        "share_of_promise": gain / promised,
    }


COLUMNS = (
    ("output_tokens_per_s", "out tok/s", "{:.1f}"),
    ("prompt_tokens_per_s", "prompt tok/s", "{:.0f}"),
    ("seconds", "seconds", "{:.2f}"),
    ("ttft_mean_ms", "TTFT mean ms", "{:.0f}"),
    ("tpot_p50_ms", "TPOT p50 ms", "{:.1f}"),
    ("tpot_p99_ms", "TPOT p99 ms", "{:.1f}"),
    ("occupancy_while_queued", "occupancy", "{:.3f}"),
    ("kv_waste", "KV waste", "{:.1%}"),
    ("kv_waste_reserved", "reserved", "{:.1%}"),
    ("planning_share", "planning", "{:.2%}"),
    ("gain_over_static", "x static", "{:.2f}"),
    ("share_of_promise", "of promise", "{:.2f}"),
)


def table(results: Iterable[WorkloadResult]) -> str:
    """Medians as a Markdown table, the spread of tokens/s behind them."""
    header = ["", *(title for _key, title, _form in COLUMNS), "spread"]
    lines = [_row(header), _row(["---"] * len(header))]
    for result in results:
        cells = [result.name]
        for key, _title, form in COLUMNS:
            has_figure = all(key in one for one in result.passes)
            cells.append(form.format(result.median(key)) if has_figure else "")
        cells.append(f"{result.spread('output_tokens_per_s'):.1%}")
        lines.append(_row(cells))
    return "\n".join(lines)


def save(path: Path, machine: dict[str, object], results: Iterable[WorkloadResult]) -> None:
    """Every pass's figures, and what they were measured on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "machine": machine,
        "workloads": {result.name: list(result.passes) for result in results},
    }
    path.write_text(json.dumps(content, indent=2))


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
