"""Keeps who holds which block in few bytes and finds everybody's share of a prefix in one walk.

Each holder has a bit, and a block's name leads to the bits of those that hold it, so a prompt is
walked once whatever the number of replicas. Forgetting a holder takes a moment, since only its bit
is put out of use; the names that it leaves behind are swept a shard at a time, because going
through a million of them at once would stop every stream of a gateway for a tenth of a second.
"""

from collections.abc import Iterable, Sequence

NUM_SHARDS = 256


class BlockHolders:
    """A map from block names (32 bytes, evenly spread) to holders, of at most `max_blocks` names.

    Over that bound new names are not taken: what is known stays true, and since parents are stored
    before children, what is left out makes hits shorter but never wrong.
    """

    def __init__(self, *, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._shards: list[dict[bytes, int]] = [{} for _ in range(NUM_SHARDS)]
        self._num_blocks = 0
        self._bits: dict[str, int] = {}
        self._holder_of: dict[int, str] = {}
        self._live = 0
        self._dead = 0
        self._sweeping = 0
        self._next_shard = 0

    @property
    def num_blocks(self) -> int:
        """Names kept, those that a forgotten holder left behind included until they are swept."""
        return self._num_blocks

    @property
    def is_sweeping(self) -> bool:
        """Whether names of forgotten holders are still kept."""
        return self._dead != 0

    def reset(self, holder: str) -> None:
        """This holder holds nothing (any more)."""
        self.forget(holder)
        used = self._live | self._dead
        bit = ~used & (used + 1)
        self._bits[holder] = bit
        self._holder_of[bit] = holder
        self._live |= bit

    def forget(self, holder: str) -> None:
        """This holder is no more; unknown ones are fine."""
        bit = self._bits.pop(holder, None)
        if bit is None:
            return
        del self._holder_of[bit]
        self._live ^= bit
        self._dead |= bit

    def add(self, holder: str, names: Iterable[bytes]) -> int:
        """The holder has these blocks now; returns how many were left out for lack of room."""
        bit = self._bits[holder]
        shards = self._shards
        num_dropped = 0
        for name in names:
            shard = shards[name[0]]
            held = shard.get(name)
            if held is not None:
                shard[name] = held | bit
            elif self._num_blocks < self._max_blocks:
                # The same object for every block that it alone holds: most of them.
                shard[name] = bit
                self._num_blocks += 1
            else:
                num_dropped += 1
        return num_dropped

    def remove(self, holder: str, names: Iterable[bytes]) -> None:
        """The holder has these blocks no longer; unknown ones are fine."""
        bit = self._bits[holder]
        for name in names:
            shard = self._shards[name[0]]
            held = shard.get(name)
            if held is None:
                continue
            left = held & ~bit
            if left:
                shard[name] = left
            else:
                del shard[name]
                self._num_blocks -= 1

    def prefix_blocks(self, names: Sequence[bytes]) -> dict[str, int]:
        """How many of the first blocks of `names` each holder has without a gap; no zeros."""
        shards = self._shards
        found: dict[str, int] = {}
        going = self._live
        length = 0
        for name in names:
            still = shards[name[0]].get(name, 0) & going
            if still != going:
                if length:
                    self._note(going ^ still, length, found)
                going = still
                if not going:
                    return found
            length += 1
        if length:
            self._note(going, length, found)
        return found

    def sweep(self, num_shards: int = 1) -> None:
        """Drop what forgotten holders left in so many shards; after all, their bits are free."""
        for _ in range(num_shards):
            if not self._dead:
                return
            if self._next_shard == 0:
                self._sweeping = self._dead
            shard = self._shards[self._next_shard]
            left = {name: now for name, held in shard.items() if (now := held & ~self._sweeping)}
            self._num_blocks += len(left) - len(shard)
            self._shards[self._next_shard] = left
            self._next_shard = (self._next_shard + 1) % NUM_SHARDS
            if self._next_shard == 0:
                self._dead &= ~self._sweeping

    def check(self) -> None:
        """Counts add up, no name is without a holder, and every bit has one meaning."""
        assert self._num_blocks == sum(len(shard) for shard in self._shards)
        assert self._num_blocks <= self._max_blocks, (self._num_blocks, self._max_blocks)
        assert not self._live & self._dead, (self._live, self._dead)
        assert sum(self._bits.values()) == self._live, (self._bits, self._live)
        known = self._live | self._dead
        for number, shard in enumerate(self._shards):
            for name, held in shard.items():
                assert name[0] == number, (name, number)
                assert held, name
                assert not held & ~known, (held, known)

    def _note(self, bits: int, length: int, found: dict[str, int]) -> None:
        holder_of = self._holder_of
        while bits:
            bit = bits & -bits
            bits ^= bit
            found[holder_of[bit]] = length
