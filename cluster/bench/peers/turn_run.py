"""Runs one turn: a fresh process of an arm, its workloads, and what the watch beside it saw."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.bench.peers.arms import Arm, Setting
from cluster.bench.peers.family import Program, ProgramEnded, started
from cluster.bench.peers.family_watch import FamilyWatch
from cluster.bench.peers.http_load import LoadFailed, run_load, wait_for_first_token
from cluster.bench.peers.plan import Turn
from cluster.bench.peers.results import TurnResult, WorkloadRun
from cluster.bench.peers.rows import MEMORY, START_UP, WHOLE_TURN
from cluster.bench.peers.workload_files import WARM_UP
from cluster.launch.free_port import free_port

_TURN_TIMEOUT_S = 900.0
_STOP_TIMEOUT_S = 90.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class TurnPlace:
    """Where a turn leaves what it prints and tells."""

    folder: Path
    turn: Turn

    def file(self, ending: str) -> Path:
        """A file of this turn alone."""
        turn = self.turn
        return self.folder / f"{turn.arm}-round{turn.round}-attempt{turn.attempt}{ending}"


def run_turn(arm: Arm, turn: Turn, setting: Setting, folder: Path) -> TurnResult:
    """What came of it; a program that fails is a result with an error, too."""
    run = _run_served if arm.is_server else _run_program
    runs: list[WorkloadRun] = []
    settings: dict[str, Any] = {}
    error = ""
    try:
        settings = run(arm, TurnPlace(folder, turn), setting, runs)
    except (ProgramEnded, LoadFailed) as ended:
        error = str(ended)
    return TurnResult(
        turn.arm,
        turn.round,
        turn.attempt,
        turn.workloads,
        tuple(runs),
        error,
        arm.versions(setting),
        settings,
    )


def _run_program(
    arm: Arm, place: TurnPlace, setting: Setting, runs: list[WorkloadRun]
) -> dict[str, Any]:
    """Adds to `runs` what it finished, whatever happens; returns what it says of itself."""
    events = place.file(".jsonl")
    events.unlink(missing_ok=True)
    asked = [one for one in place.turn.workloads if one not in WHOLE_TURN]
    command = arm.command(setting, 0)
    arguments = [
        *(*command.arguments, "--only", ",".join(asked), "--events", str(events)),
        *("--workloads", str(setting.workloads), *_first_requests(setting)),
    ]
    deadline = time.monotonic() + _TURN_TIMEOUT_S
    with (
        started(arguments, command.variables, log=place.file(".log")) as program,
        FamilyWatch(program.pid) as watch,
    ):
        try:
            _wait_for_last_line(events, program, deadline)
        finally:
            runs.extend(_runs_of(_lines(events), watch))
        runs.append(_memory_run(watch))
        program.close_input()
        program.wait(timeout_s=_STOP_TIMEOUT_S)
    settings: dict[str, Any] = _lines(events)[-1]["settings"]
    return settings


def _run_served(
    arm: Arm, place: TurnPlace, setting: Setting, runs: list[WorkloadRun]
) -> dict[str, Any]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = arm.command(setting, port)
    began_at = time.monotonic()
    deadline = began_at + _TURN_TIMEOUT_S
    with (
        started(command.arguments, command.variables, log=place.file(".log")) as program,
        FamilyWatch(program.pid) as watch,
    ):
        wait_for_first_token(url, check=lambda: program.check(deadline))
        first_at = time.monotonic()
        figures = {"first_token_s": first_at - began_at}
        runs.append(_watched(START_UP, began_at, first_at, figures, watch))
        _load_all(url, place, setting, runs, watch)
        runs.append(_memory_run(watch))
        program.interrupt()
        program.wait(timeout_s=_STOP_TIMEOUT_S)
    return {"command": " ".join(command.arguments), **command.variables}


def _load_all(
    url: str, place: TurnPlace, setting: Setting, runs: list[WorkloadRun], watch: FamilyWatch
) -> None:
    def load(workload: str) -> dict[str, float]:
        return run_load(
            url,
            workload,
            folder=setting.workloads,
            max_requests=setting.max_requests,
            result=place.file(f"-{workload}.json"),
        )

    for workload in place.turn.workloads:
        if workload not in WHOLE_TURN:
            load(WARM_UP)
            began_at = time.monotonic()
            figures = load(workload)
            runs.append(_watched(workload, began_at, time.monotonic(), figures, watch))


def _watched(
    workload: str, began_at: float, ended_at: float, figures: dict[str, float], watch: FamilyWatch
) -> WorkloadRun:
    foreign = watch.foreign_cores(began_at, ended_at)
    return WorkloadRun(workload, began_at, ended_at, figures, round(foreign, 3))


def _memory_run(watch: FamilyWatch) -> WorkloadRun:
    # Others' use of the CPU does not change it.
    now = time.monotonic()
    return WorkloadRun(MEMORY, now, now, watch.memory())


def _wait_for_last_line(events: Path, program: Program, deadline: float) -> None:
    while not any(line.get("done") for line in _lines(events)):
        program.check(deadline)
        time.sleep(_POLL_S)


def _lines(events: Path) -> list[dict[str, Any]]:
    """Every line that is whole."""
    if not events.exists():
        return []
    whole, _newline, _begun = events.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def _runs_of(lines: Sequence[dict[str, Any]], watch: FamilyWatch) -> list[WorkloadRun]:
    return [
        _watched(line["workload"], line["began_at"], line["ended_at"], line["figures"], watch)
        for line in lines
        if "workload" in line
    ]


def _first_requests(setting: Setting) -> list[str]:
    return [] if setting.max_requests is None else ["--requests", str(setting.max_requests)]
