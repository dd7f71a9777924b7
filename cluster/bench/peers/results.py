"""Keeps what was measured in a file that is whole after every turn, so that it can be continued."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1


@dataclass(frozen=True, slots=True)
class WorkloadRun:
    """One workload of a turn. began_at, ended_at: monotonic seconds of this machine.

    foreign_cores: mean CPU, in cores, that processes other than the turn's used meanwhile.
    """

    workload: str
    began_at: float
    ended_at: float
    figures: Mapping[str, float]
    foreign_cores: float = 0.0


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What came of one turn. workloads: what it was asked to run.

    error: why it ended early; empty if it did not.
    versions: of what ran. settings: what it said of itself.
    """

    arm: str
    round: int
    attempt: int
    workloads: tuple[str, ...]
    runs: tuple[WorkloadRun, ...] = ()
    error: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def run_of(self, workload: str) -> WorkloadRun | None:
        """That workload's run, if there was one."""
        return next((run for run in self.runs if run.workload == workload), None)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "TurnResult":
        """The reverse of dataclasses.asdict."""
        runs = tuple(WorkloadRun(**run) for run in values["runs"])
        return cls(**{**values, "runs": runs, "workloads": tuple(values["workloads"])})


@dataclass(slots=True)
class Results:
    """Everything measured so far.

    machine: what it was measured on, date included. choices: the command's options that change
    figures; a file is continued only under the same ones. absent: arms that could not take part,
    and why.
    """

    machine: Mapping[str, Any]
    choices: Mapping[str, Any]
    absent: dict[str, str] = field(default_factory=dict)
    turns: list[TurnResult] = field(default_factory=list)
    growth: Mapping[str, Any] | None = None

    def save(self, path: Path) -> None:
        """Write it, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1))
        draft.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Results":
        """Read a saved file. Raises ValueError for one of another format."""
        values = json.loads(path.read_text())
        if (found := values.pop("format", None)) != FORMAT:
            raise ValueError(f"{path}: format {found}, expected {FORMAT}")
        values["turns"] = [TurnResult.from_json(turn) for turn in values["turns"]]
        return cls(**values)
