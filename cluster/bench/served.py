"""Who uses the cores while `pagoda serve` is loaded, and what a first token waits for.

What HTTP costs on one machine is what gateway, proxy, Ray and the load driver take from the engine;
this says how much each of them takes.
"""

import argparse
import os
import resource
import time
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from cluster.bench.peers.arms import ARMS, Setting
from cluster.bench.peers.environments import peers_dir_of
from cluster.bench.peers.family import started
from cluster.bench.peers.http_load import run_load, wait_for_first_token
from cluster.bench.peers.process_table import busy_s, family_pids
from cluster.bench.peers.workload_files import WARM_UP
from cluster.launch.free_port import free_port
from cluster.launch.prepare_apart import prepare_apart
from cluster.launch.process_ties import adopt_orphans
from cluster.metrics.call_meter import TTFT_PARTS

_START_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 90.0
# What tells a process from the others, in its command line; first match.
_NAMES = {
    "replicas.engine_process": "engine",
    "pagoda:gateway": "gateway",
    "pagoda:replica": "replica",
    "bin/haproxy": "HAProxy",
    "ServeController": "Serve's controller",
}
_OTHERS = "Ray, store, launcher"
_DRIVER = "load driver"
_ELSEWHERE = "not ours"
_IDLE = "idle"
_PART_METRIC = "pagoda:ttft_part_seconds"


@dataclass(frozen=True, slots=True)
class Served:
    """One workload: the load driver's figures; core-seconds by who used them; TTFT parts in ms."""

    workload: str
    figures: Mapping[str, float]
    core_s: Mapping[str, float]
    parts_ms: Mapping[str, float]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of this benchmark."""
    parser.add_argument("--only", default="W6,W1", metavar="W6,W1", help="workloads, in order")
    parser.add_argument("--rounds", type=int, default=3, help="each with a fresh service")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--cache-dir", default=".cache/models", help="folder of prepared models")
    parser.add_argument("--workloads", default="../shared/workloads", help="folder of JSONL files")
    parser.add_argument("--output", default="results/served", help="folder of logs and results")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="of ours")


def main(options: argparse.Namespace) -> int:
    """Measure and print a table of each workload."""
    model = prepare_apart(options.model, cache_dir=Path(options.cache_dir).resolve())
    setting = Setting(
        model=Path(model.folder).resolve(),
        workloads=Path(options.workloads).resolve(),
        peers_dir=Path(peers_dir_of(os.environ)).resolve(),
        num_cores=len(os.sched_getaffinity(0)),
        ours=tuple(options.set),
    )
    adopt_orphans()
    workloads = options.only.split(",")
    found = [
        served
        for number in range(options.rounds)
        for served in measure(setting, workloads, Path(options.output).resolve() / str(number))
    ]
    for workload in workloads:
        print(table([one for one in found if one.workload == workload]))
    return 0


def measure(setting: Setting, workloads: Sequence[str], folder: Path) -> list[Served]:
    """All workloads, one after another, through one service."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = ARMS["pagoda-serve-as-it-starts"].command(setting, port)
    deadline = time.monotonic() + _START_TIMEOUT_S
    with started(command.arguments, command.variables, log=folder / "serve.log") as program:
        wait_for_first_token(url, check=lambda: program.check(deadline))

        def load(workload: str) -> dict[str, float]:
            result = folder / f"{workload}.json"
            return run_load(
                url, workload, folder=setting.workloads, max_requests=None, result=result
            )

        found = []
        for workload in workloads:
            load(WARM_UP)
            before, parts_before = _usage(program.pid), _parts(url)
            figures = load(workload)
            after = _usage(program.pid)
            used = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
            parts = _parts(url)
            parts_ms = {
                name: 1e3
                * (parts[name][0] - parts_before[name][0])
                / max(parts[name][1] - parts_before[name][1], 1.0)
                for name in TTFT_PARTS
            }
            found.append(Served(workload, figures, used, parts_ms))
        program.interrupt()
        program.wait(timeout_s=_STOP_TIMEOUT_S)
    return found


def table(found: Sequence[Served]) -> str:
    """Medians over rounds, as Markdown."""
    names = sorted({name for one in found for name in one.core_s}, key=lambda name: name == _IDLE)
    wall = [sum(one.core_s.values()) for one in found]
    lines = [f"{found[0].workload}, {len(found)} rounds", "", "| cores used by | seconds | share |"]
    lines.append("|---|---|---|")
    for name in names:
        seconds = [one.core_s.get(name, 0.0) for one in found]
        shares = [each / all_of for each, all_of in zip(seconds, wall, strict=True)]
        lines.append(f"| {name} | {_spread(seconds, '.2f')} | {_spread(shares, '.1%')} |")
    lines += ["", "| | |", "|---|---|"]
    for name in ("output_tokens_per_s", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms"):
        lines.append(f"| {name} | {_spread([one.figures[name] for one in found], '.1f')} |")
    for name in TTFT_PARTS:
        values = [one.parts_ms[name] for one in found]
        lines.append(f"| mean TTFT, {name} ms | {_spread(values, '.1f')} |")
    return "\n".join(lines) + "\n"


def who(command_line: str) -> str:
    """Whose process that is, of those that a service consists of."""
    return next((name for mark, name in _NAMES.items() if mark in command_line), _OTHERS)


def _spread(values: Sequence[float], form: str) -> str:
    ordered = sorted(values)
    middle = ordered[len(ordered) // 2]
    return f"{middle:{form}} ({ordered[0]:{form}} to {ordered[-1]:{form}})"


def _usage(service_pid: int) -> dict[str, float]:
    """Core-seconds since the machine started, by who used them; all together are cores times time.

    A load driver counts once it has ended.
    """
    used: dict[str, float] = defaultdict(float)
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    for pid in family_pids(service_pid):
        process = Path("/proc") / str(pid)
        try:
            command_line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            fields = (process / "stat").read_text().rpartition(") ")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        used[who(command_line)] += tick_s * (int(fields[11]) + int(fields[12]))
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    used[_DRIVER] = children.ru_utime + children.ru_stime
    stat = Path("/proc/stat").read_text()
    busy = busy_s(stat)
    used[_ELSEWHERE] = busy - sum(used.values())
    used[_IDLE] = tick_s * sum(int(one) for one in stat.partition("\n")[0].split()[4:6])
    return used


def _parts(url: str) -> dict[str, tuple[float, float]]:
    """Sum and count of each part of the time to the first token, of all gateways."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10.0) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    found = dict.fromkeys(TTFT_PARTS, (0.0, 0.0))
    for sample in (each for family in families for each in family.samples):
        part = sample.labels.get("part", "")
        if part in found and sample.name in (f"{_PART_METRIC}_sum", f"{_PART_METRIC}_count"):
            total, count = found[part]
            if sample.name.endswith("_sum"):
                found[part] = total + sample.value, count
            else:
                found[part] = total, count + sample.value
    return found
