"""What an engine asks of whoever moves blocks between host memory and a store, and the answers.

The mover lives beside the engine (in the parent of its process), shares the host tier's bytes with
it and talks to a block store. Nothing here waits: jobs are handed over, answers come back as
commands at a step boundary, and a job that is never answered costs the engine nothing but slots.
"""

from dataclasses import dataclass
from typing import Protocol

from replicas.memory.handoff_jobs import HandoffAnswer, HandoffJob
from replicas.memory.host_tier import HostBlock


@dataclass(frozen=True, slots=True)
class StoreSpeeds:
    """What the mover measures of its store; None before the first transfer of a kind."""

    put_bytes_per_s: float | None = None
    fetch_bytes_per_s: float | None = None
    round_trip_s: float | None = None


@dataclass(frozen=True, slots=True)
class StoreJob:
    """Write these blocks to the store, from their slots, which stay as they are until StoreDone."""

    job_id: int
    blocks: tuple[HostBlock, ...]


@dataclass(frozen=True, slots=True)
class LookUpJob:
    """Say how many of the first of these blocks the store has."""

    job_id: int
    names: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class FetchJob:
    """Read these blocks, verified, into their slots; nobody else touches those until FetchDone.

    timeout_s: longest wait for the store; what has not come by then is not wanted.
    """

    job_id: int
    blocks: tuple[HostBlock, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class StoreDone:
    """num_held: blocks of the job that the store acknowledged."""

    job_id: int
    num_held: int
    speeds: StoreSpeeds = StoreSpeeds()


@dataclass(frozen=True, slots=True)
class LookedUp:
    """num_found: leading blocks of the job that the store has."""

    job_id: int
    num_found: int
    speeds: StoreSpeeds = StoreSpeeds()


@dataclass(frozen=True, slots=True)
class FetchDone:
    """num_fetched: leading blocks of the job that are whole in their slots. seconds: it took."""

    job_id: int
    num_fetched: int
    seconds: float
    speeds: StoreSpeeds = StoreSpeeds()


MoverJob = StoreJob | LookUpJob | FetchJob | HandoffJob
MoverAnswer = StoreDone | LookedUp | FetchDone | HandoffAnswer


class BlockMover(Protocol):
    """Takes jobs, from the engine's thread; answers each exactly once, through its inbox."""

    @property
    def has_store(self) -> bool:
        """Whether there is anything to ask."""
        ...

    def take(self, job: MoverJob) -> None:
        """Hand over a job; never blocks and never fails."""
        ...


class NoMover:
    """No store was configured."""

    has_store = False

    def take(self, job: MoverJob) -> None:
        """Asserts that nobody asks."""
        raise AssertionError(f"no store, but a job: {job}")
