"""Keeps values in Redis: one SET per block, so that a block is there whole or not at all.

A pin is a set of leases beside the block that the server forgets by itself once nobody renews it,
so a replica that died leaves nothing behind. The server's own eviction does not know of pins
(ServerInfo.pin_warnings); our trimming does.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvstore.block_hash import BlockHash
from kvstore.block_store import Buffer, PutOutcome, StoredEntry
from kvstore.errors import StoreUnavailable
from kvstore.redis_keys import block_key, pins_key
from kvstore.redis_lanes import Command, Exchanged, RedisLanes
from kvstore.redis_scan import scan_entries
from kvstore.redis_trimming import Trimmer
from kvstore.resp_wire import Reply, RespError, command
from kvstore.value_shelf import Decoded, Encode, Read, ShelfRead, ShelfWrite

# In place of a number that a full server would not give; it gives none below -2.
_FULL = -3


@dataclass(frozen=True, slots=True)
class ShelfLimits:
    """timeout_s: of a write or a scan. fetch_timeout_s: of what a request waits for.
    value_bytes: of the largest value. ttl_s: of a value; 0 has no end.
    """

    timeout_s: float
    fetch_timeout_s: float
    value_bytes: int
    ttl_s: float = 0.0


class RedisShelf:
    """The values of one namespace."""

    def __init__(
        self,
        lanes: RedisLanes,
        *,
        namespace: str,
        limits: ShelfLimits,
        clock: Callable[[], float],
    ) -> None:
        self._lanes = lanes
        self._namespace = namespace
        self._limits = limits
        self._clock = clock
        self._trimmer = Trimmer(lanes, namespace=namespace, clock=clock)

    @property
    def num_trimmed(self) -> int:
        """Values that were removed to make room, so far."""
        return self._trimmer.num_trimmed

    def num_present(self, names: Sequence[BlockHash]) -> int:
        """See ValueShelf."""
        asked = self._small([self._command("EXISTS", name) for name in names])
        return _num_leading(asked)

    def read(self, names: Sequence[BlockHash], read: Read, *, timeout_s: float | None) -> ShelfRead:
        """See ValueShelf."""

        def use(index: int, reply: Reply) -> Decoded | None:
            if reply is None or isinstance(reply, RespError):
                return None
            if not isinstance(reply, bytes | memoryview):
                raise StoreUnavailable(f"GET answered {type(reply).__name__}", kind="protocol")
            return read(index, memoryview(reply))

        result = self._lanes.exchange(
            [self._command("GET", name) for name in names],
            use,
            timeout_s=self._limits.fetch_timeout_s if timeout_s is None else timeout_s,
            bytes_each=self._limits.value_bytes,
        )
        return ShelfRead(result.replies, result.failure)

    def write(self, names: Sequence[BlockHash], encode: Encode) -> ShelfWrite:
        """See ValueShelf. If the server is full, room is made once, and the rest tried again."""
        deadline = self._clock() + self._limits.timeout_s
        try:
            is_here = self._touch(names)
        except StoreUnavailable as error:
            return ShelfWrite(tuple("dropped" for _ in names), error)
        outcomes: list[PutOutcome] = ["present" if here else "dropped" for here in is_here]
        failure = self._set(names, encode, outcomes, deadline)
        if "full" in outcomes and failure is None:
            num_bytes = outcomes.count("full") * self._limits.value_bytes
            if self._trimmer.make_room(num_bytes, deadline=deadline):
                failure = self._set(names, encode, outcomes, deadline)
        return ShelfWrite(tuple(outcomes), failure)

    def pin(self, names: Sequence[BlockHash], *, lease: str, ttl_s: float) -> int:
        """See ValueShelf. The pin is set before the block is looked for, so none slips between.

        A full server has no memory for a pin either: room is made once.
        """
        ttl_ms = max(1, round(1000 * ttl_s))
        keys = [block_key(self._namespace, name) for name in names]
        commands = [Command(key, _pin_parts(key, lease, ttl_ms), num_replies=4) for key in keys]
        asked = self._small(commands)
        if _FULL in asked:
            deadline = self._clock() + self._limits.fetch_timeout_s
            self._trimmer.make_room(self._limits.value_bytes, deadline=deadline)
            asked = self._small(commands)
        return _num_leading(asked)

    def unpin(self, names: Sequence[BlockHash], *, lease: str) -> None:
        """See ValueShelf."""
        keys = [block_key(self._namespace, name) for name in names]
        self._small([_fixed(key, "SREM", pins_key(key), lease) for key in keys])

    def delete(self, names: Sequence[BlockHash]) -> int:
        """See ValueShelf."""
        return sum(self._small([self._command("UNLINK", name) for name in names]))

    def scan(self) -> Iterator[StoredEntry]:
        """See ValueShelf."""
        entries = scan_entries(
            self._lanes, namespace=self._namespace, timeout_s=self._limits.timeout_s
        )
        for _, entry in entries:
            yield entry

    def close(self) -> None:
        """See ValueShelf."""
        self._lanes.close()

    def _touch(self, names: Sequence[BlockHash]) -> list[bool]:
        """Which values are here; those last ttl_s from now."""
        ttl_ms = round(1000 * self._limits.ttl_s)
        if ttl_ms:
            asked = [self._command("PEXPIRE", name, ttl_ms) for name in names]
        else:
            asked = [self._command("EXISTS", name) for name in names]
        return [number == 1 for number in self._small(asked, is_write=True)]

    def _set(
        self,
        names: Sequence[BlockHash],
        encode: Encode,
        outcomes: list[PutOutcome],
        deadline: float,
    ) -> StoreUnavailable | None:
        """Write those that are neither stored nor present, and note what became of them."""
        missing = [i for i, outcome in enumerate(outcomes) if outcome in ("dropped", "full")]
        result = self._lanes.exchange(
            [self._set_command(names[i], encode, i) for i in missing],
            _acknowledged,
            timeout_s=max(0.0, deadline - self._clock()),
            bytes_each=self._limits.value_bytes,
            is_write=True,
        )
        for i, outcome, was_sent in zip(missing, result.replies, result.was_sent, strict=True):
            outcomes[i] = outcome or ("failed" if was_sent else "dropped")
        return result.failure

    def _set_command(self, name: BlockHash, encode: Encode, index: int) -> Command:
        key = block_key(self._namespace, name)
        ttl_ms = round(1000 * self._limits.ttl_s)

        def parts() -> Sequence[Buffer]:
            value = encode(index).parts
            if ttl_ms:
                return command("PSETEX", key, ttl_ms, value=value)
            return command("SET", key, value=value)

        return Command(key, parts)

    def _command(self, verb: str, name: BlockHash, *arguments: int) -> Command:
        key = block_key(self._namespace, name)
        return _fixed(key, verb, key, *arguments)

    def _small(self, commands: Sequence[Command], *, is_write: bool = False) -> list[int]:
        """The whole numbers that commands without a payload are answered with."""
        result = self._lanes.exchange(
            commands,
            _whole_number,
            timeout_s=self._limits.timeout_s if is_write else self._limits.fetch_timeout_s,
            is_write=is_write,
        )
        return _all_replies(result)


def _pin_parts(key: bytes, lease: str, ttl_ms: int) -> Callable[[], Sequence[Buffer]]:
    pins = pins_key(key)
    parts = (
        *command("SADD", pins, lease),
        *command("PEXPIRE", pins, ttl_ms),
        # GT leaves a block alone that lasts longer than the pin, or for ever.
        *command("PEXPIRE", key, ttl_ms, "GT"),
        *command("EXISTS", key),
    )
    return lambda: parts


def _fixed(key: bytes, *words: bytes | str | int) -> Command:
    return Command(key, lambda: command(*words))


def _acknowledged(index: int, reply: Reply) -> PutOutcome:
    if reply == b"OK":
        return "stored"
    is_full = isinstance(reply, RespError) and reply.code == "OOM"
    return "full" if is_full else "failed"


def _whole_number(index: int, reply: Reply) -> int:
    if isinstance(reply, RespError) and reply.code == "OOM":
        return _FULL
    return reply if isinstance(reply, int) else 0


def _all_replies(result: Exchanged[int]) -> list[int]:
    if result.failure is not None:
        raise result.failure
    return [reply or 0 for reply in result.replies]


def _num_leading(is_here: Sequence[int]) -> int:
    return next((index for index, here in enumerate(is_here) if here <= 0), len(is_here))
