"""Compares Pagoda with other engines, installs one of them, or writes a report again.

`python -m cluster.bench.peers run`, `... install vllm`, `... report results/peers/results.json`.
"""

import argparse
import math
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CalledProcessError

from cluster.bench.peers.arms import ARMS, Setting
from cluster.bench.peers.comparison import REPORT, Comparison, make_report
from cluster.bench.peers.environments import PEERS, peers_dir_of
from cluster.bench.peers.installing import InstallFailed, install
from cluster.bench.peers.machine import describe_machine
from cluster.bench.peers.markdown import with_report
from cluster.bench.peers.plan import MAX_ATTEMPTS, MAX_FOREIGN_CORES, Plan, workloads_by_arm
from cluster.bench.peers.results import Results
from cluster.bench.peers.rows import GROUPS, ROWS, rows_of
from cluster.launch.prepare_apart import ModelNotReady, prepare_apart
from cluster.launch.process_ties import adopt_orphans
from replicas.models.prepared_model import PreparedModel

GROWTH = "growth"
_PROG = "python -m cluster.bench.peers"


def main(arguments: Sequence[str]) -> int:
    """The exit status: 1 if it could not be done, 2 for wrong use."""
    options = _parser().parse_args(arguments)
    # A comparison takes long, and its output is often a file.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    task = {"run": _run, "install": _install, "report": _report}[options.task]
    try:
        task(options)
    except (InstallFailed, ModelNotReady, ValueError, OSError, CalledProcessError) as error:
        print(f"{_PROG}: {error}", file=sys.stderr)
        return 1
    return 0


def _run(options: argparse.Namespace) -> None:
    groups = options.only.split(",") if options.only else [*GROUPS, GROWTH]
    rows = rows_of(group for group in groups if group != GROWTH)
    model = _model(options)
    setting = _setting(options, model)
    results, folder = _results(options, model, setting)
    results.absent = {name: why for name, arm in ARMS.items() if (why := arm.absence(setting))}
    present = [name for name in ARMS if name not in results.absent]
    plan = Plan(
        workloads_by_arm(rows, present),
        rounds=options.rounds,
        max_foreign_cores=options.max_foreign_cores,
        max_attempts=options.attempts,
    )
    adopt_orphans()
    deadline = time.monotonic() + 60.0 * options.minutes
    comparison = Comparison(rows, plan, setting, folder, deadline)
    comparison.run(results)
    if GROWTH in groups and results.growth is None and time.monotonic() < deadline:
        comparison.grow(results)
    comparison.write(results)
    print("\n" + (folder / REPORT).read_text())


def _install(options: argparse.Namespace) -> None:
    model = Path(_model(options).folder).resolve()
    for name in options.peers:
        install(name, Path(options.peers_dir).resolve(), model=model)
        print(f"{name}: installed in {options.peers_dir}")


def _report(options: argparse.Namespace) -> None:
    path = Path(options.results).resolve()
    results = Results.load(path)
    measured = {(turn.arm, run.workload) for turn in results.turns for run in turn.runs}
    rows = [
        row for row in ROWS if {(row.ours, row.workload), (row.theirs, row.workload)} & measured
    ]
    rounds = max((turn.round for turn in results.turns), default=0)
    plan = Plan({}, rounds=rounds, max_foreign_cores=options.max_foreign_cores)
    document = Path(options.write).resolve() if options.write else path.parent / REPORT
    page = make_report(results, rows, plan, document.parent)
    document.write_text(with_report(document.read_text(), page) if options.write else page)
    print(page)


def _model(options: argparse.Namespace) -> PreparedModel:
    return prepare_apart(options.model, cache_dir=Path(options.cache_dir).resolve())


def _setting(options: argparse.Namespace, model: PreparedModel) -> Setting:
    return Setting(
        model=Path(model.folder).resolve(),
        workloads=Path(options.workloads).resolve(),
        peers_dir=Path(options.peers_dir).resolve(),
        num_cores=len(os.sched_getaffinity(0)),
        kv_gib=options.kv_gib,
        max_requests=options.requests,
        ours=tuple(options.set),
        theirs=tuple(options.peer_variable),
    )


def _results(
    options: argparse.Namespace, model: PreparedModel, setting: Setting
) -> tuple[Results, Path]:
    """What to add to, and the folder that it is kept in.

    Raises ValueError for results that were measured with other settings.
    """
    choices = {
        "model": model.name,
        "fingerprint": model.fingerprint,
        "kv_gib": setting.kv_gib,
        "max_requests": setting.max_requests,
        "ours": list(setting.ours),
        "theirs": list(setting.theirs),
    }
    if not options.go_on_with:
        command = f"{_PROG} {shlex.join(sys.argv[1:])}"
        return Results(describe_machine(command), choices), Path(options.output).resolve()
    path = Path(options.go_on_with).resolve()
    results = Results.load(path)
    if results.choices != choices:
        raise ValueError(f"{path} was measured with {results.choices}; now it would be {choices}")
    # What failed altogether may have been put right since.
    results.turns = [turn for turn in results.turns if turn.runs]
    return results, path.parent


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_PROG, description=__doc__)
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK")
    run = tasks.add_parser("run", help="measure what is missing, and report")
    _add_run_options(run)
    installing = tasks.add_parser("install", help="a peer, into an environment of its own")
    installing.add_argument("peers", nargs="+", choices=PEERS, metavar="PEER")
    reporting = tasks.add_parser("report", help="write the report of saved results again")
    reporting.add_argument("results", metavar="RESULTS.json")
    reporting.add_argument("--write", default="", metavar="DOCUMENT.md", help="between its marks")
    for task in (run, reporting):
        task.add_argument("--max-foreign-cores", type=float, default=MAX_FOREIGN_CORES)
    for task in (run, installing):
        add = task.add_argument
        add("--peers-dir", default=peers_dir_of(os.environ), help="or $PEERS_DIR")
        add("--model", default="demo", help="what `pagoda serve --model` takes")
        add("--cache-dir", default=".cache/models", help="folder of prepared models")
    return parser


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    names = ", ".join([*GROUPS, GROWTH])
    add("--only", default="", metavar="ROWS", help=f"some of {names}, by commas")
    add("--rounds", type=int, default=5)
    add("--attempts", type=int, default=MAX_ATTEMPTS, help="at a turn that others disturb")
    add("--minutes", type=float, default=math.inf, help="start no further turn after so many")
    add("--requests", type=int, default=None, help="first ones of each workload, for a quick look")
    add("--kv-gib", type=int, default=4, help="memory for K and V of every engine")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="of our engine")
    add("--peer-variable", action="append", default=[], metavar="NAME=VALUE", help="of every peer")
    add("--workloads", default=_default_workloads(os.environ), help="folder of JSONL files")
    add("--output", default="results/peers", help="folder of results, report, plots and logs")
    add("--continue", dest="go_on_with", default="", metavar="RESULTS.json")


def _default_workloads(environ: Mapping[str, str]) -> str:
    return str(Path(environ.get("PAGODA_SHARED_DIR", "../shared")) / "workloads")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
