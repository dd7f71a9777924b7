"""Numbers the changes of a replica's prefix cache and keeps their sum, to answer whoever lost some.

The cache itself lives in the engine's process; asking it for all its names would hold up a step, so
the replica keeps a copy of the names only: about 100 bytes for each block. Gateways want the names
only too, so changes of one kind are told as one, without the tokens: an engine makes an event of
every block, and taking them one by one would cost a gateway of a large cluster half a core.
"""

from collections.abc import Iterable
from itertools import groupby

from cluster.streams.stream_codec import KvEventBatch
from replicas.request import KvEvent
from router.prefixes.kv_events import KvSnapshot

# At most some 1.1 MB on the wire.
MAX_SNAPSHOT_BLOCKS = 32_768


class KvCatalogue:
    """What one replica's prefix cache can find, by epoch: a new engine core begins with nothing."""

    def __init__(self) -> None:
        self._epoch = 0
        self._next_number = 0
        # Kept in the order of storing, which puts parents before children.
        self._names: dict[bytes, None] = {}

    def begin(self, epoch: int) -> None:
        """Another core: nothing can be found, and numbers start again."""
        if epoch != self._epoch:
            self._epoch, self._next_number = epoch, 0
            self._names.clear()

    def add(self, events: tuple[KvEvent, ...]) -> KvEventBatch | None:
        """Take in what a step changed; the changes with their numbers, None when there are none."""
        if not events:
            return None
        joined = tuple(_joined(events))
        for event in joined:
            if event.kind == "stored":
                self._names.update(dict.fromkeys(event.block_hashes))
            elif event.kind == "removed":
                for name in event.block_hashes:
                    self._names.pop(name, None)
            else:
                self._names.clear()
        batch = KvEventBatch(self._epoch, self._next_number, joined)
        self._next_number += len(joined)
        return batch

    def snapshot(self, *, max_blocks: int = MAX_SNAPSHOT_BLOCKS) -> tuple[KvSnapshot, ...]:
        """Everything that can be found now, in parts of at most `max_blocks`; at least one part."""
        names = tuple(self._names)
        starts = range(0, max(1, len(names)), max_blocks)
        return tuple(
            KvSnapshot(
                self._epoch,
                self._next_number,
                names[start : start + max_blocks],
                is_first=start == 0,
                is_last=start == starts[-1],
            )
            for start in starts
        )


def _joined(events: tuple[KvEvent, ...]) -> Iterable[KvEvent]:
    """Neighbours of one kind as one event of all their names."""
    for kind, group in groupby(events, key=lambda event: event.kind):
        yield KvEvent(kind, tuple(name for event in group for name in event.block_hashes))
