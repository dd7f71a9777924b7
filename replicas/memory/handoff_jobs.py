"""What an engine asks of whoever carries hand-offs for it, and the answers.

As with store jobs (replicas.memory.block_mover) nothing here waits. `key` is the table's
(kvstore.handoff_table.table_key); jobs with one key are done in the order in which they come.
"""

from dataclasses import dataclass

from kvstore.handoff_table import HandoffTable
from replicas.handoff import HandoffFault
from replicas.memory.host_tier import HostBlock


@dataclass(frozen=True, slots=True)
class OfferJob:
    """Let another engine read these blocks, which stay in their slots until the hand-off ends.

    table: of what was offered so far; published once all of it can be read. is_last: it is whole.
    tail_name: of the one block among them that is private, if there is one.
    """

    key: bytes
    blocks: tuple[HostBlock, ...]
    ttl_s: float
    table: HandoffTable
    tail_name: bytes
    is_last: bool


@dataclass(frozen=True, slots=True)
class WithdrawJob:
    """The hand-off is over on this side: give up table, pins and readers."""

    key: bytes


@dataclass(frozen=True, slots=True)
class ReadTableJob:
    """Read the table of a hand-off. is_early: to see how far it is."""

    key: bytes
    timeout_s: float
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class AdoptJob:
    """Fetch blocks of a hand-off into their slots; nobody else touches those until `Adopted`.

    The table and what lies beside it are removed afterwards, since it serves one reader, but not
    if that is_early.
    """

    key: bytes
    table: HandoffTable
    blocks: tuple[HostBlock, ...]
    timeout_s: float
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class Offered:
    """One OfferJob was done. fault: why some of its blocks, or the table, cannot be read.

    is_published: the table can be read. num_bytes: of K and V, over the whole hand-off.
    """

    key: bytes
    fault: HandoffFault | None
    is_published: bool = False
    num_bytes: int = 0
    transport: str = ""


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Nobody reads the slots of this hand-off any more."""

    key: bytes


@dataclass(frozen=True, slots=True)
class TableRead:
    """The table, or why there is none to use."""

    key: bytes
    table: HandoffTable | None
    fault: HandoffFault | None = None
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class Adopted:
    """num_whole: leading blocks of the job that are whole in their slots. fault: why not all."""

    key: bytes
    num_whole: int
    fault: HandoffFault | None = None
    num_bytes: int = 0
    transport: str = ""
    is_early: bool = False


HandoffJob = OfferJob | WithdrawJob | ReadTableJob | AdoptJob
HandoffAnswer = Offered | Withdrawn | TableRead | Adopted
