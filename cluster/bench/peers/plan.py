"""Decides whose turn it is: arms in turn within a round, disturbed ones again, within a bound."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.bench.peers.results import TurnResult
from cluster.bench.peers.rows import MEMORY, WHOLE_TURN, Row

# A turn with nothing else to run still has to show its memory under load.
_LOAD = "W1"
MAX_FOREIGN_CORES = 0.3
MAX_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Turn:
    """One fresh process of one arm: which round, which attempt at it, and what it runs in order."""

    arm: str
    round: int
    attempt: int
    workloads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is to be measured: for each arm, in order, the workloads of one round.

    max_foreign_cores: a workload beside which others used more than this is disturbed.
    max_attempts: how often a workload is asked for in a round. An arm of which nothing ran that
    often has no further turn.
    """

    workloads: dict[str, tuple[str, ...]]
    rounds: int
    max_foreign_cores: float = MAX_FOREIGN_CORES
    max_attempts: int = MAX_ATTEMPTS

    def next_turn(self, done: Sequence[TurnResult]) -> Turn | None:
        """What to run now; None when nothing is left."""
        hopeful = [arm for arm in self.workloads if not self._is_hopeless(arm, done)]
        for number in range(1, self.rounds + 1):
            for arm in hopeful:
                turn = self._turn_of(arm, number, done)
                if turn is not None:
                    return turn
        return None

    def is_clean(self, result: TurnResult, workload: str) -> bool:
        """Whether a turn ran this workload, to its end and undisturbed."""
        run = result.run_of(workload)
        return run is not None and run.foreign_cores <= self.max_foreign_cores

    def _is_hopeless(self, arm: str, done: Sequence[TurnResult]) -> bool:
        failed = Counter(one.round for one in done if one.arm == arm and not one.runs)
        return any(number >= self.max_attempts for number in failed.values())

    def _turn_of(self, arm: str, number: int, done: Sequence[TurnResult]) -> Turn | None:
        before = [one for one in done if one.arm == arm and one.round == number]
        missing = tuple(one for one in self.workloads[arm] if self._is_missing(one, before))
        return Turn(arm, number, len(before) + 1, missing) if missing else None

    def _is_missing(self, workload: str, before: Sequence[TurnResult]) -> bool:
        asked = [one for one in before if workload in one.workloads]
        is_found = any(self.is_clean(one, workload) for one in asked)
        return not is_found and len(asked) < self.max_attempts


def workloads_by_arm(rows: Iterable[Row], arms: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """What each of these arms has to run for the rows, arms in their given order.

    Where one of a row's two arms cannot run, the other one's figure is measured all the same.
    """
    wanted: dict[str, tuple[str, ...]] = {}
    rows = tuple(rows)
    for arm in arms:
        of_arm = {row.workload for row in rows if arm in (row.ours, row.theirs)}
        if of_arm == {MEMORY}:
            of_arm.add(_LOAD)
        if of_arm:
            wanted[arm] = tuple(sorted(of_arm, key=lambda one: (one in WHOLE_TURN, one)))
    return wanted
