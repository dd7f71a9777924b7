"""Turns results into the table's figures: medians, ranges, and ratios within each round."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.bench.peers.plan import Plan
from cluster.bench.peers.results import Results, TurnResult
from cluster.bench.peers.rows import Row, is_met


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of some values."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of one value or more."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class RowSummary:
    """What was found for a row; None where nothing was measured.

    ratios: ours / theirs within a round, over the rounds in which both ran. num_rounds: how many
    these are. num_disturbed: runs that others disturbed; they count only where there is nothing
    else, which is_disturbed says. absence: why an arm is missing.
    """

    row: Row
    ours: Spread | None
    theirs: Spread | None
    ratios: Spread | None
    num_rounds: int
    num_disturbed: int
    is_disturbed: bool
    absence: str

    @property
    def floor_is_met(self) -> bool | None:
        """None where nothing was promised, or nothing was measured undisturbed."""
        return self._is_met(self.row.floor)

    @property
    def aim_is_met(self) -> bool | None:
        """None where nothing was aimed at, or nothing was measured undisturbed."""
        value = self.row.aim_value
        if value is not None and self.ours is not None and not self.is_disturbed:
            return is_met(self.row.figure.better, self.ours.median, value)
        return self._is_met(self.row.aim)

    def _is_met(self, bound: float | None) -> bool | None:
        if bound is None or self.ratios is None or self.is_disturbed:
            return None
        return is_met(self.row.figure.better, self.ratios.median, bound)


def summarise(row: Row, results: Results, plan: Plan) -> RowSummary:
    """The row's figures from all turns so far."""
    clean = _pair(row, results, plan, only_clean=True)
    everything = _pair(row, results, plan, only_clean=False)
    chosen = everything if everything.is_complete and not clean.is_complete else clean
    rounds = sorted(chosen.ours.keys() & chosen.theirs.keys())
    ratios = [chosen.ours[number] / chosen.theirs[number] for number in rounds]
    return RowSummary(
        row=row,
        ours=_spread(chosen.ours),
        theirs=_spread(chosen.theirs),
        ratios=Spread.of(ratios) if ratios else None,
        num_rounds=len(rounds),
        num_disturbed=_num_disturbed(row, results, plan),
        is_disturbed=chosen is everything,
        absence="; ".join(_absence(arm, row, results) for arm in _missing(row, chosen)),
    )


@dataclass(frozen=True, slots=True)
class _Pair:
    """Both arms' figures by round."""

    ours: Mapping[int, float]
    theirs: Mapping[int, float]

    @property
    def is_complete(self) -> bool:
        return bool(self.ours.keys() & self.theirs.keys())


def _pair(row: Row, results: Results, plan: Plan, *, only_clean: bool) -> _Pair:
    def by_round(arm: str) -> dict[int, float]:
        found: dict[int, float] = {}
        for turn in _turns_of(arm, results):
            run = turn.run_of(row.workload)
            if run is not None and (not only_clean or plan.is_clean(turn, row.workload)):
                found.setdefault(turn.round, row.figure.scale * run.figures[row.figure.key])
        return found

    return _Pair(by_round(row.ours), by_round(row.theirs))


def _turns_of(arm: str, results: Results) -> list[TurnResult]:
    return sorted(
        (turn for turn in results.turns if turn.arm == arm),
        key=lambda turn: (turn.round, turn.attempt),
    )


def _spread(by_round: Mapping[int, float]) -> Spread | None:
    return Spread.of(list(by_round.values())) if by_round else None


def _num_disturbed(row: Row, results: Results, plan: Plan) -> int:
    return sum(
        turn.run_of(row.workload) is not None and not plan.is_clean(turn, row.workload)
        for arm in (row.ours, row.theirs)
        for turn in _turns_of(arm, results)
    )


def _missing(row: Row, pair: _Pair) -> list[str]:
    return [arm for arm, found in ((row.ours, pair.ours), (row.theirs, pair.theirs)) if not found]


def _absence(arm: str, row: Row, results: Results) -> str:
    """Why there is no figure of this arm."""
    turns = _turns_of(arm, results)
    errors = [turn.error for turn in turns if turn.error]
    if arm in results.absent:
        return f"{arm} {results.absent[arm]}"
    if any(turn.run_of(row.workload) for turn in turns):
        return f"{arm} ran only disturbed"
    return f"{arm} failed: {errors[-1]}" if errors else f"{arm} not measured"
