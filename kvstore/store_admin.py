"""Shows, verifies and empties what the store holds, over SCAN in bounded batches.

Replicas may read and write meanwhile. What each function needs to know of a model stands in the
keys and in the values' own headers, so none has to be given.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvstore.block_codec import decode_unasked, read_header
from kvstore.block_hash import BlockHash
from kvstore.block_store import StoredEntry
from kvstore.errors import CorruptBlock, CorruptionKind
from kvstore.redis_keys import PREFIX, block_key, pins_key
from kvstore.redis_lanes import Command, RedisLanes
from kvstore.redis_scan import scan_entries, scan_keys
from kvstore.resp_wire import Reply, command

log = logging.getLogger(__name__)

_BATCH_BLOCKS = 64
_BATCH_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class NamespaceUse:
    """What one layout's blocks take. namespace: BlockLayout.namespace, the model first."""

    namespace: str
    num_blocks: int
    num_bytes: int

    @property
    def fingerprint(self) -> str:
        """Of the model."""
        return self.namespace.partition(".")[0]


@dataclass(frozen=True, slots=True)
class BadBlock:
    """A value that no replica would take, and why."""

    namespace: str
    name: BlockHash
    kind: CorruptionKind
    reason: str


@dataclass(frozen=True, slots=True)
class Verified:
    """num_whole: blocks of which every byte was checked. num_gone: left between SCAN and GET."""

    num_whole: int
    num_gone: int
    num_bytes: int
    bad: tuple[BadBlock, ...]


class StoreAdmin:
    """Everything under our prefix on the servers behind some lanes; closes nothing.

    fingerprint: in each method, of the one model that is meant; None means all. Every method raises
    StoreUnavailable.
    """

    def __init__(self, lanes: RedisLanes, *, timeout_s: float) -> None:
        self._lanes = lanes
        self._timeout_s = timeout_s

    def show(self, fingerprint: str | None = None) -> tuple[NamespaceUse, ...]:
        """Blocks and bytes of each namespace, the largest first."""
        num_blocks: dict[str, int] = defaultdict(int)
        num_bytes: dict[str, int] = defaultdict(int)
        for namespace, entry in self._entries(fingerprint):
            num_blocks[namespace] += 1
            num_bytes[namespace] += entry.num_bytes
        uses = [NamespaceUse(name, num_blocks[name], num_bytes[name]) for name in num_blocks]
        return tuple(sorted(uses, key=lambda use: (-use.num_bytes, use.namespace)))

    def verify(self, fingerprint: str | None = None) -> Verified:
        """Read every block again and check every byte; one log line for each bad one."""
        num_whole = num_gone = num_bytes = 0
        bad: list[BadBlock] = []
        for batch in _batches(self._entries(fingerprint)):
            for (namespace, entry), found in zip(batch, self._check(batch), strict=True):
                if found is None:
                    num_gone += 1
                elif isinstance(found, int):
                    num_whole += 1
                    num_bytes += found
                else:
                    bad.append(BadBlock(namespace, entry.name, found.kind, str(found)))
                    log.warning(
                        "block corrupt kind=%s namespace=%s name=%s: %s",
                        found.kind,
                        namespace,
                        entry.name.hex(),
                        found,
                    )
        return Verified(num_whole, num_gone, num_bytes, tuple(bad))

    def empty(self, fingerprint: str | None = None) -> int:
        """Remove blocks and their pins; how many blocks there were.

        Blocks that are written meanwhile may stay.
        """
        num_removed = 0
        for keys in scan_keys(self._lanes, namespace=None, timeout_s=self._timeout_s):
            chosen = [key for key in keys if _is_of(key, fingerprint)]
            num_removed += sum(self._numbers([("UNLINK", key) for key in chosen]))
            self._numbers([("UNLINK", pins_key(key)) for key in chosen])
        log.info("store emptied blocks=%d model=%s", num_removed, fingerprint or "all")
        return num_removed

    def _entries(self, fingerprint: str | None) -> Iterator[tuple[str, StoredEntry]]:
        entries = scan_entries(self._lanes, namespace=None, timeout_s=self._timeout_s)
        return (
            (namespace, entry)
            for namespace, entry in entries
            if fingerprint in (None, namespace.partition(".")[0])
        )

    def _check(
        self, batch: Sequence[tuple[str, StoredEntry]]
    ) -> tuple[int | CorruptBlock | None, ...]:
        """Bytes of each whole block, what is wrong with the others, None for those that went."""

        def use(index: int, reply: Reply) -> int | CorruptBlock | None:
            if not isinstance(reply, bytes | memoryview):
                return None
            namespace, entry = batch[index]
            return _checked(memoryview(reply), namespace, entry.name)

        keys = [block_key(namespace, entry.name) for namespace, entry in batch]
        result = self._lanes.exchange(
            [_command("GET", key) for key in keys],
            use,
            timeout_s=self._timeout_s,
            bytes_each=max(entry.num_bytes for _, entry in batch),
        )
        if result.failure is not None:
            raise result.failure
        return result.replies

    def _numbers(self, commands: Sequence[tuple[str, bytes]]) -> list[int]:
        result = self._lanes.exchange(
            [_command(verb, key) for verb, key in commands],
            lambda _, reply: reply if isinstance(reply, int) else 0,
            timeout_s=self._timeout_s,
            is_write=True,
        )
        if result.failure is not None:
            raise result.failure
        return [reply or 0 for reply in result.replies]


def _checked(value: memoryview, namespace: str, name: BlockHash) -> int | CorruptBlock:
    try:
        header = read_header(value)
        block = decode_unasked(value, header)
    except CorruptBlock as error:
        return error
    if header.layout.namespace != namespace:
        return CorruptBlock(
            f"layout={header.layout.namespace}: expected {namespace}", kind="foreign"
        )
    if block.name != name:
        return CorruptBlock(f"name={block.name.hex()}: expected {name.hex()}", kind="other_tokens")
    return len(value)


def _batches(
    entries: Iterator[tuple[str, StoredEntry]],
) -> Iterator[list[tuple[str, StoredEntry]]]:
    batch: list[tuple[str, StoredEntry]] = []
    num_bytes = 0
    for entry in entries:
        batch.append(entry)
        num_bytes += entry[1].num_bytes
        if len(batch) == _BATCH_BLOCKS or num_bytes >= _BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


def _is_of(key: bytes, fingerprint: str | None) -> bool:
    return fingerprint is None or key.startswith(b"%s%s." % (PREFIX, fingerprint.encode()))


def _command(verb: str, key: bytes) -> Command:
    return Command(key, lambda: command(verb, key))
