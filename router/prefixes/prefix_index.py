"""Knows exactly which replica's prefix cache holds which blocks, and notices when it does not.

An index that credits blocks which no longer exist sends requests to the wrong replica (survey,
complaint 19). So every batch of changes is numbered: a gap asks for a snapshot, a number that goes
backwards or another epoch empties what was known of that replica, and its loss forgets it. Between
a gap and the snapshot the index goes on with what it has: a wrong hit costs a prefill, no more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from router.prefixes.block_holders import NUM_SHARDS, BlockHolders
from router.prefixes.kv_events import AskSnapshot, KvChange, KvChanges, KvSnapshot

# A tick then takes a few milliseconds, and a whole sweep some seconds of ticks.
_SWEEP_PER_TICK = NUM_SHARDS // 128
# Asking those that were left out again pays only once there is room for more than a few blocks.
_ROOMY = 0.75


@dataclass(frozen=True, slots=True)
class IndexFigures:
    """What the index holds and went through. num_blocks: distinct names; the others are totals."""

    num_blocks: int
    num_inexact: int
    gaps_total: int
    resets_total: int
    snapshots_total: int
    dropped_blocks_total: int


@dataclass(slots=True)
class _Publisher:
    """Where one replica's numbered changes stand. epoch 0: nothing was heard yet."""

    epoch: int = 0
    next_number: int = 0
    num_dropped: int = 0
    is_loading: bool = False
    wish: str | None = None
    asked_at: float | None = None


class PrefixIndex:
    """Fed with numbered changes and snapshots, asked for hits; commands come out of `due`.

    max_blocks: distinct block names kept at most. snapshot_timeout_s: a snapshot that does not
    come in this time is asked for again.
    """

    def __init__(self, *, max_blocks: int, snapshot_timeout_s: float = 5.0) -> None:
        self._max_blocks = max_blocks
        self._snapshot_timeout_s = snapshot_timeout_s
        self._holders = BlockHolders(max_blocks=max_blocks)
        self._publishers: dict[str, _Publisher] = {}
        self._gaps = 0
        self._resets = 0
        self._snapshots = 0
        self._dropped = 0

    def hits(self, block_hashes: Sequence[bytes]) -> Mapping[str, int]:
        """How many of a prompt's first blocks each replica holds; those with none are left out."""
        return self._holders.prefix_blocks(block_hashes)

    def attach(self, replica_id: str) -> None:
        """A stream to this replica begins without a memory of what it said before."""
        publisher = self._reset(replica_id)
        publisher.wish = "attached"

    def begin_epoch(self, replica_id: str, epoch: int) -> None:
        """The replica is known to be in that epoch: a later one than known begins with nothing."""
        publisher = self._publishers.get(replica_id)
        if publisher is None or not 0 < publisher.epoch < epoch:
            return
        publisher = self._reset(replica_id)
        publisher.epoch = epoch
        publisher.wish = publisher.asked_at = None

    def forget(self, replica_id: str) -> None:
        """The replica is lost, and its cache with it."""
        self._publishers.pop(replica_id, None)
        self._holders.forget(replica_id)

    def apply(self, replica_id: str, batch: KvChanges) -> None:
        """Take in a batch of changes, in the order in which the replica's stream brings them."""
        publisher = self._publishers.get(replica_id) or self._reset(replica_id)
        if batch.epoch != publisher.epoch or batch.first_number < publisher.next_number:
            publisher = self._begin_epoch(replica_id, publisher, batch)
        elif batch.first_number > publisher.next_number:
            self._gaps += 1
            publisher.wish = "gap"
        elif publisher.is_loading:
            publisher.wish = "interrupted"
        publisher.is_loading = False
        for event in batch.events:
            self._change(replica_id, publisher, event)
        publisher.next_number = batch.first_number + len(batch.events)
        self._holders.sweep()

    def load(self, replica_id: str, snapshot: KvSnapshot) -> None:
        """Take in a part of a snapshot; its first part empties what was known before."""
        publisher = self._publishers.get(replica_id)
        if snapshot.is_first:
            publisher = self._reset(replica_id)
            publisher.epoch, publisher.next_number = snapshot.epoch, snapshot.next_number
        elif publisher is None or not publisher.is_loading:
            # Its first part was lost or overtaken; whoever noticed has asked for another one.
            return
        publisher.is_loading = not snapshot.is_last
        self._store(replica_id, publisher, snapshot.block_hashes)
        if snapshot.is_last:
            self._snapshots += 1
            publisher.wish = publisher.asked_at = None

    def due(self, now: float) -> tuple[AskSnapshot, ...]:
        """The snapshots to ask for now; call it after changes and about once a second."""
        self._holders.sweep(_SWEEP_PER_TICK)
        is_roomy = self._holders.num_blocks < self._max_blocks * _ROOMY
        commands = []
        for replica_id, publisher in self._publishers.items():
            if publisher.num_dropped and publisher.wish is None and is_roomy:
                publisher.wish = "room_again"
            if (reason := self._reason_to_ask(publisher, now)) is not None:
                publisher.asked_at = now
                commands.append(AskSnapshot(replica_id, reason))
        return tuple(commands)

    def is_exact(self, replica_id: str) -> bool:
        """Whether all that this replica's cache can find, and nothing else, is known."""
        publisher = self._publishers.get(replica_id)
        return (
            publisher is not None
            and publisher.epoch > 0
            and publisher.wish is None
            and not publisher.num_dropped
        )

    @property
    def figures(self) -> IndexFigures:
        """What it holds and went through."""
        return IndexFigures(
            num_blocks=self._holders.num_blocks,
            num_inexact=sum(not self.is_exact(replica_id) for replica_id in self._publishers),
            gaps_total=self._gaps,
            resets_total=self._resets,
            snapshots_total=self._snapshots,
            dropped_blocks_total=self._dropped,
        )

    def check(self) -> None:
        """Every invariant of what is kept."""
        self._holders.check()

    def _reset(self, replica_id: str) -> _Publisher:
        self._holders.reset(replica_id)
        publisher = _Publisher()
        earlier = self._publishers.get(replica_id)
        if earlier is not None:
            publisher.wish, publisher.asked_at = earlier.wish, earlier.asked_at
        self._publishers[replica_id] = publisher
        return publisher

    def _begin_epoch(self, replica_id: str, publisher: _Publisher, batch: KvChanges) -> _Publisher:
        """The cache began anew, or its numbers make no sense: only what follows is known."""
        if publisher.epoch:
            self._resets += 1
        publisher = self._reset(replica_id)
        publisher.epoch = batch.epoch
        if batch.first_number == 0:
            publisher.wish = publisher.asked_at = None
        else:
            publisher.wish = publisher.wish or "backwards"
        return publisher

    def _change(self, replica_id: str, publisher: _Publisher, event: KvChange) -> None:
        if event.kind == "stored":
            self._store(replica_id, publisher, event.block_hashes)
        elif event.kind == "removed":
            self._holders.remove(replica_id, event.block_hashes)
        elif event.kind == "cleared":
            self._holders.reset(replica_id)
            publisher.num_dropped = 0
        else:
            publisher.wish = "unknown_change"

    def _store(self, replica_id: str, publisher: _Publisher, names: Sequence[bytes]) -> None:
        num_dropped = self._holders.add(replica_id, names)
        publisher.num_dropped += num_dropped
        self._dropped += num_dropped

    def _reason_to_ask(self, publisher: _Publisher, now: float) -> str | None:
        if publisher.wish is None:
            return None
        if publisher.asked_at is None:
            return publisher.wish
        return "unanswered" if now - publisher.asked_at >= self._snapshot_timeout_s else None
