"""Conducts a comparison: turn after turn, everything saved after each, until nothing is left."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.bench.peers.arms import ARMS, Setting
from cluster.bench.peers.markdown import report
from cluster.bench.peers.plan import Plan, Turn
from cluster.bench.peers.plots import NoPlots, draw_growth
from cluster.bench.peers.results import Results, TurnResult
from cluster.bench.peers.rows import Row
from cluster.bench.peers.turn_run import run_turn

RESULTS = "results.json"
REPORT = "report.md"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared, where it is kept, and until when turns may start.

    deadline: in seconds of `clock`. tell: one line for whoever watches.
    """

    rows: Sequence[Row]
    plan: Plan
    setting: Setting
    folder: Path
    deadline: float
    clock: Callable[[], float] = time.monotonic
    tell: Callable[[str], None] = print

    def run(self, results: Results) -> None:
        """Add every turn that is missing in `results`, and save after each."""
        while (turn := self.plan.next_turn(results.turns)) is not None:
            if self.clock() > self.deadline:
                self.tell("no time for another turn; go on with --continue")
                break
            began_at = self.clock()
            done = run_turn(ARMS[turn.arm], turn, self.setting, self.folder / "turns")
            results.turns.append(done)
            self.write(results)
            self.tell(_one_line(turn, done, seconds=self.clock() - began_at))

    def grow(self, results: Results) -> None:
        """Measure the growth of our own engine, in a fresh process."""
        path = self.folder / "growth.json"
        command = [
            *(sys.executable, "-m", "replicas.bench.growth", "--output", str(path)),
            *("--model", str(self.setting.model)),
            *(f"--set={one}" for one in self.setting.ours),
        ]
        subprocess.run(command, check=True)
        results.growth = json.loads(path.read_text())
        self.write(results)

    def write(self, results: Results) -> None:
        """The results and their report."""
        results.save(self.folder / RESULTS)
        page = make_report(results, self.rows, self.plan, self.folder, tell=self.tell)
        (self.folder / REPORT).write_text(page)


def make_report(
    results: Results,
    rows: Iterable[Row],
    plan: Plan,
    folder: Path,
    *,
    tell: Callable[[str], None] = print,
) -> str:
    """The report of what there is; its plots are drawn into `folder`."""
    plots: list[str] = []
    if results.growth:
        try:
            plots = draw_growth(results.growth, folder)
        except NoPlots as error:
            tell(str(error))
    return report(results, rows, plan, plots)


def _one_line(turn: Turn, done: TurnResult, *, seconds: float) -> str:
    figures = " ".join(
        f"{run.workload}={_main_figure(run.figures)}"
        + (f" (foreign {run.foreign_cores:.2f})" if run.foreign_cores >= 0.05 else "")
        for run in done.runs
    )
    again = f" attempt {turn.attempt}" if turn.attempt > 1 else ""
    error = f" error: {done.error}" if done.error else ""
    return f"round {turn.round} {turn.arm}{again} {seconds:.0f} s: {figures}{error}"


def _main_figure(figures: Mapping[str, float]) -> str:
    """What says most about a run, whichever workload it was."""
    shown = [name for name in ("first_token_s", "peak_bytes", "tpot_p50_ms") if name in figures]
    if "output_tokens_per_s" in figures:
        shown.insert(0, "output_tokens_per_s")
    return ",".join(f"{figures[name]:.4g}" for name in shown)
