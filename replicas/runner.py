"""The protocol between the engine and whatever computes a batch: a model, or a stand-in for one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from replicas.batch import Batch, Sampled
from replicas.speculation.draft_batch import DraftBatch

NearlyDone = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Pause:
    """How a batch that is computed is asked to stand still.

    take: returns when it may go on; in it another batch may be run, whose blocks this one does not
    write to. Calling it when nobody wants that costs little. wanted: [1], not 0 when it should be
    called; set by another thread, at any moment, so that kernels can look at it themselves.
    """

    take: Callable[[], None]
    wanted: NDArray[np.int32] = field(default_factory=lambda: np.zeros(1, dtype=np.int32))


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
        """As `run`; takes the pause soon after it is wanted, unless it is nearly done."""
        ...


@runtime_checkable
class CanDraft(Protocol):
    """A runner that has a small model beside its own, for guesses."""

    def draft(self, batch: DraftBatch) -> Sequence[Sequence[int]]:
        """[R]: for each row at least as many guesses as it asks for; between two batches."""
        ...
