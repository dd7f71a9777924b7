"""Fetches a prompt's blocks while the prefill engine still computes later ones.

A prefill engine says with every chunk how far it is. Who will compute the output is told of the
request before that, and fetches what is there, so that only the last chunk's blocks are left to be
adopted when the first token comes (lecture 11, 11.8). What it brings are ordinary blocks of host
memory; without any of it a hand-off is slower and just as right.
"""

from dataclasses import dataclass, field

from kvstore.block_hash import block_hashes
from kvstore.handoff_table import HandoffTable, hash_of_tokens, table_key
from replicas.handoff import HandoffIn
from replicas.memory.block_mover import BlockMover
from replicas.memory.handoff_jobs import Adopted, AdoptJob, ReadTableJob, TableRead
from replicas.memory.host_tier import HostBlock, HostTier
from replicas.memory.tier_stats import TierTotals
from replicas.request import EngineRequest

# Between two looks at a table, and while there is none: nothing is computed yet.
POLL_INTERVAL_S = 0.02
ABSENT_INTERVAL_S = 0.05
_READ_TIMEOUT_S = 1.0


@dataclass(slots=True)
class _Prefetch:
    """One prompt on its way. held: pinned slots of its first blocks; coming: being filled now.

    is_busy: a job is under way. is_over: nothing more is fetched.
    """

    request: EngineRequest
    handoff: HandoffIn
    deadline: float
    tokens: tuple[int, ...]
    names: tuple[bytes, ...]
    held: list[int] = field(default_factory=list)
    coming: list[int] = field(default_factory=list)
    read_at: float = 0.0
    is_busy: bool = False
    is_over: bool = False


class HandoffPrefetches:
    """Hand-offs to come, by the key of their tables."""

    def __init__(
        self, *, tier: HostTier, mover: BlockMover, totals: TierTotals, block_size: int
    ) -> None:
        self._tier = tier
        self._mover = mover
        self._totals = totals
        self._block_size = block_size
        self._by_key: dict[bytes, _Prefetch] = {}

    @property
    def has_any(self) -> bool:
        """Whether time alone brings something to do."""
        return bool(self._by_key)

    def begin(self, request: EngineRequest, handoff: HandoffIn, now: float) -> None:
        """A request will be handed over; a second word of the same one changes nothing."""
        key = table_key(request.request_id, handoff.generation)
        if key in self._by_key or not self._mover.has_store or not self._tier.num_slots:
            return
        tokens = (*request.prompt_token_ids, *request.emitted_token_ids)
        names = block_hashes(tokens, block_size=self._block_size, root=request.root)
        deadline = now + handoff.deadline_s
        self._by_key[key] = _Prefetch(request, handoff, deadline, tokens, tuple(names))

    def poll(self, now: float) -> None:
        """Look how far the other sides are; give up those whose time is over."""
        for key, one in list(self._by_key.items()):
            if now >= one.deadline:
                self.stop(key)
                self.drop(key)
            elif not one.is_busy and not one.is_over and now >= one.read_at:
                one.is_busy = True
                self._mover.take(ReadTableJob(key, _READ_TIMEOUT_S, is_early=True))

    def table_read(self, answer: TableRead, now: float) -> None:
        """The other side is so far."""
        one = self._by_key[answer.key]
        one.is_busy = False
        table = answer.table
        one.read_at = now + (ABSENT_INTERVAL_S if table is None else POLL_INTERVAL_S)
        if one.is_over or table is None or not self._is_of(one, table):
            self._forget_if_over(answer.key, one)
            return
        blocks = self._reserve(one, len(table.names))
        # With the last block comes the request itself.
        one.is_over = bool(table.token_ids)
        if blocks:
            one.is_busy = True
            timeout_s = max(0.0, one.deadline - now)
            job = AdoptJob(answer.key, table, tuple(blocks), timeout_s, is_early=True)
            self._mover.take(job)

    def adopted(self, answer: Adopted) -> None:
        """Blocks have come, or have not."""
        one = self._by_key[answer.key]
        one.is_busy = False
        whole, rest = one.coming[: answer.num_whole], one.coming[answer.num_whole :]
        for slot in whole:
            self._tier.pin(slot)
            self._tier.fill(slot)
        for slot in rest:
            self._tier.drop(slot)
        one.held += whole
        one.coming = []
        one.is_over |= bool(rest)
        self._totals.add("handoff_adopted_bytes", answer.num_bytes)
        self._forget_if_over(answer.key, one)

    def stop(self, key: bytes) -> bool:
        """Fetch nothing more for it; whether a job is still under way."""
        one = self._by_key.get(key)
        if one is None:
            return False
        one.is_over = True
        return one.is_busy

    def is_busy(self, key: bytes) -> bool:
        """Whether a job is under way for it."""
        one = self._by_key.get(key)
        return one is not None and one.is_busy

    def drop(self, key: bytes) -> None:
        """What came for it is used, or will not be: it need not stay."""
        one = self._by_key.get(key)
        if one is None:
            return
        assert one.is_over, "still fetching"
        for slot in one.held:
            self._tier.unpin(slot)
        one.held = []
        one.deadline = float("-inf")
        self._forget_if_over(key, one)

    def pins(self) -> list[int]:
        """Every pin that is held here."""
        return [slot for one in self._by_key.values() for slot in (*one.held, *one.coming)]

    def _is_of(self, one: _Prefetch, table: HandoffTable) -> bool:
        num_tokens = table.num_tokens
        return (
            table.request_id == one.request.request_id
            and table.generation == one.handoff.generation
            and 0 < num_tokens <= len(one.tokens)
            and table.token_hash == hash_of_tokens(one.tokens[:num_tokens])
            and table.names == one.names[: len(table.names)]
        )

    def _reserve(self, one: _Prefetch, num_blocks: int) -> list[HostBlock]:
        """Slots for the next of its blocks, up to one that is here and not ours to wait for."""
        size = self._block_size
        blocks: list[HostBlock] = []
        for index in range(len(one.held), num_blocks):
            parent = one.names[index - 1] if index else one.request.root
            tokens = one.tokens[index * size : (index + 1) * size]
            block = HostBlock(one.names[index], parent, tokens)
            found = self._tier.find(block.name, parent, tokens)
            if found is not None and not blocks:
                self._tier.pin(found)
                one.held.append(found)
                continue
            slot = None if block.name in self._tier else self._tier.reserve(block)
            if slot is None:
                break
            one.coming.append(slot)
            blocks.append(self._tier.block(slot))
        return blocks

    def _forget_if_over(self, key: bytes, one: _Prefetch) -> None:
        if one.deadline == float("-inf") and not one.is_busy:
            # What came after it was given up stays as an ordinary block.
            for slot in one.held:
                self._tier.unpin(slot)
            del self._by_key[key]
