"""The protocol between the engine and whatever computes a batch: a model, or a stand-in for one."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from replicas.batch import Batch, Sampled
from replicas.speculation.draft_batch import DraftBatch

NearlyDone = Callable[[], None]
Pause = Callable[[], None]


class Runner(Protocol):
    """Computes batches one after another, in the order in which they are given.

    The engine hands over batch k + 1 while batch k may still run, so a runner keeps the last
    sampled token of every slot for the UNRESOLVED tokens of the next batch.
    """

    def run(self, batch: Batch, nearly_done: NearlyDone) -> Sampled:
        """Do the batch's moves in their order, compute its rows, sample.

        When it returns, every host slot that a move read or wrote may be used by others.
        Calls `nearly_done` once, shortly before it returns, so that the next batch can be planned
        late enough to take new arrivals in and early enough not to leave the device idle.
        """
        ...

    def close(self) -> None:
        """Release memory and threads; no call comes after this one."""
        ...


@runtime_checkable
class CanPause(Protocol):
    """A runner that lets another batch pass while it computes one."""

    def run_pausing(self, batch: Batch, nearly_done: NearlyDone, pause: Pause) -> Sampled:
        """As `run`; calls `pause` now and then before it is nearly done, as often as costs nothing.

        In it another batch may be run, whose blocks this one does not write to.
        """
        ...


@runtime_checkable
class CanDraft(Protocol):
    """A runner that has a small model beside its own, for guesses."""

    def draft(self, batch: DraftBatch) -> Sequence[Sequence[int]]:
        """[R]: for each row at least as many guesses as it asks for; between two batches."""
        ...
