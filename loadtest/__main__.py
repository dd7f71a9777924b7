"""Runs load tests and makes reports from the command line."""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import uvloop

from loadtest.capacity import Capacity, Probe, find_capacity
from loadtest.config import LoadConfig
from loadtest.live_view import open_view
from loadtest.load_config import capacity_search, load_config
from loadtest.load_run import WorkerLost, run_load
from loadtest.options import PROG, build_parser
from loadtest.report import write_report
from loadtest.result import build_result
from loadtest.server_facts import ServerFacts, ServerUnready, learn_server
from loadtest.summary import print_summary
from loadtest.worker import expected_end_s


def main(argv: Sequence[str] | None = None) -> int:
    """Run `argv` (the process's own arguments by default); returns the exit status.

    0: the run has a result; 1: it could not be run; 2: bad options.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["report"]:
        return _report(arguments[1:])
    parser = build_parser()
    args = parser.parse_args(arguments)
    try:
        config = load_config(args)
        search = capacity_search(args) if args.find_capacity else None
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    try:
        facts = uvloop.run(learn_server(config.server))
        if search is None:
            result = _run_once(config, facts, quiet=args.quiet)
        else:
            result = _run_search(config, facts, search, quiet=args.quiet)
    except (ServerUnready, WorkerLost, ValueError, OSError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 1
    _save(result, args)
    return 0


def _run_once(config: LoadConfig, facts: ServerFacts, *, quiet: bool) -> dict[str, Any]:
    title = f"{config.workload.dataset} on {config.server.target.base_url}"
    view = None if quiet else open_view(title, expected_end_s(config.traffic))
    try:
        outcome = run_load(config, facts, view.show if view else lambda *_: None)
    finally:
        if view is not None:
            view.close()
    result = build_result(config, facts, outcome, now=datetime.now())
    print_summary(result, sys.stdout)
    return result


def _run_search(
    config: LoadConfig, facts: ServerFacts, search: Any, *, quiet: bool
) -> dict[str, Any]:
    results: list[dict[str, Any]] = []

    def measure(rate_rps: float) -> Probe:
        # Another seed each time: a prompt seen before would come from the server's cache.
        seed = config.traffic.seed + len(results)
        traffic = replace(config.traffic, arrivals="rate", rate_rps=rate_rps, seed=seed)
        print(f"\nprobe {len(results) + 1}: {rate_rps:.3f} requests/s")
        result = _run_once(replace(config, traffic=traffic), facts, quiet=quiet)
        results.append(result)
        return Probe(
            rate_rps,
            result["request_goodput"],
            result["goodput_attainment"],
            result["saturation"]["kind"],
        )

    capacity = find_capacity(search, measure)
    _print_capacity(capacity, search.target_attainment)
    place = capacity.probes.index(capacity.best) if capacity.best is not None else -1
    return results[place] | {
        "capacity": asdict(capacity) | {"target_attainment": search.target_attainment}
    }


def _print_capacity(capacity: Capacity, target: float) -> None:
    print("\nrate/s     goodput/s  attainment  saturation")
    for probe in capacity.probes:
        mark = "  <- highest" if probe == capacity.best else ""
        print(
            f"{probe.rate_rps:<11.3f}{probe.goodput_rps:<11.3f}{probe.attainment:<12.1%}"
            f"{probe.saturation}{mark}"
        )
    if capacity.best is None:
        print(f"no probed rate reached {target:.0%}")


def _save(result: dict[str, Any], args: argparse.Namespace) -> None:
    if args.save_result or args.append_result or args.save_detailed:
        path = _result_path(result, args)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if args.append_result else "w", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        print(f"result     {path}")
    if args.report is not None:
        write_report([result], Path(args.report))
        print(f"report     {args.report}")


def _result_path(result: dict[str, Any], args: argparse.Namespace) -> Path:
    """vLLM's file name, unless one is given."""
    folder = Path(args.result_dir or ".")
    if args.result_filename:
        return folder / str(args.result_filename)
    model = str(result["model_id"]).rsplit("/", 1)[-1]
    gate = f"-concurrency{args.max_concurrency}" if args.max_concurrency is not None else ""
    if args.ramp_up_strategy:
        load = f"ramp-up-{args.ramp_up_strategy}-{args.ramp_up_start_rps:g}qps-"
        load += f"{args.ramp_up_end_rps:g}qps"
    else:
        rate = args.request_rate
        load = f"{'inf' if rate is None or math.isinf(rate) else format(rate, 'g')}qps"
    return folder / f"{result['label']}-{load}{gate}-{model}-{result['date']}.json"


def _report(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=f"{PROG} report", description="One HTML page from one or several JSON results."
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.json")
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"))
    args = parser.parse_args(arguments)
    try:
        results = [entry for path in args.results for entry in _read_results(path)]
        write_report(results, args.output)
    except (OSError, ValueError, KeyError) as error:
        print(f"{PROG} report: {error}", file=sys.stderr)
        return 1
    print(f"report     {args.output}")
    return 0


def _read_results(path: Path) -> list[dict[str, Any]]:
    """The results in a file: one JSON object, or one a line as --append-result writes."""
    text = path.read_text(encoding="utf-8")
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


if __name__ == "__main__":
    sys.exit(main())
