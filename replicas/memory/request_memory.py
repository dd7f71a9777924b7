"""What of the KV cache each running request holds: found, taken, grown, published, given back.

The scheduler decides who runs; this says what that takes in blocks and does the bookkeeping, so
that a request's blocks change in one place only (lecture 10, 10.3 and 10.4).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from replicas.batch import BlockMove, CopyBlock
from replicas.block_allocator import BlockAllocator
from replicas.block_table import BlockTables, num_blocks_for
from replicas.config import SchedulerConfig
from replicas.request_state import RequestState


@dataclass(frozen=True, slots=True)
class FoundPrefix:
    """What of a waiting request's known tokens need not be computed.

    blocks: hold the first num_tokens of them; the last block may be part of a sibling's, of which
    only the beginning is wanted. num_free_blocks: how many of the blocks nobody holds, which taking
    them would take out of the free blocks. next_is_pending: somebody is computing what comes next.
    source: the running sibling whose blocks they are; None if they were found by name.
    """

    blocks: tuple[int, ...] = ()
    num_tokens: int = 0
    num_free_blocks: int = 0
    next_is_pending: bool = False
    source: RequestState | None = None


class RequestMemory:
    """Blocks and slots of the running requests, in one pool that all of them share.

    moves: block contents that the step being planned moves before it computes, in this order. Each
    sees all that earlier steps compute, since batches are executed as they were planned; an
    overtaker's moves touch nothing that the step it passes writes (replicas.overtaking).
    num_copied_blocks: blocks copied so far because somebody else held or could find them.
    """

    def __init__(self, config: SchedulerConfig, allocator: BlockAllocator) -> None:
        self.tables = BlockTables(
            max_num_seqs=config.max_num_seqs,
            max_blocks=num_blocks_for(config.max_model_len, config.block_size),
        )
        self._config = config
        self._allocator = allocator
        self._num_promised = 0
        self.moves: list[BlockMove] = []
        self.num_copied_blocks = 0

    def take_moves(self) -> tuple[BlockMove, ...]:
        """The moves of the step being planned, which is about to be sealed."""
        moves = tuple(self.moves)
        self.moves.clear()
        return moves

    def match(self, request: RequestState) -> FoundPrefix:
        """Computed blocks of its known tokens, less the last token, which must be computed.

        Found by name, or taken from a running sibling as soon as that has computed as much of the
        prompt as can be shared (a fork: lecture 10, 10.4; vLLM's parallel sampling).
        """
        if not self._shares_blocks(request):
            return FoundPrefix()
        block_size = self._config.block_size
        names = request.full_block_names(block_size, len(request.tokens) - 1)
        named = self._allocator.find_prefix(names, request.tokens, root=request.origin.root)
        num_tokens = len(named.blocks) * block_size
        siblings = [one for one in request.siblings if one.is_running]
        if siblings and num_tokens < request.num_common_tokens:
            source = max(siblings, key=lambda sibling: sibling.num_planned)
            if source.num_planned >= request.num_common_tokens:
                return self._fork_of(source, request.num_common_tokens)
        return FoundPrefix(
            named.blocks,
            num_tokens,
            named.num_free_blocks,
            named.next_is_pending or self._is_coming(request, siblings, num_tokens),
        )

    def all_of(self, source: RequestState) -> FoundPrefix:
        """Everything that a running choice has computed, for one that goes on from there."""
        return self._fork_of(source, source.num_planned)

    def fits(self, request: RequestState, found: FoundPrefix, *, is_alone: bool) -> bool:
        """Whether its known tokens and some headroom fit above the watermark.

        With nothing else running only the tokens themselves count: the request would otherwise
        wait for room that nobody will give back.
        """
        needed = num_blocks_for(len(request.tokens) + 1, self._config.block_size)
        needed -= self._num_lasting_blocks(found)
        left = self._allocator.num_free - found.num_free_blocks - self._num_promised - needed
        if is_alone:
            return left >= 0
        return left >= self._config.watermark_blocks + self._config.headroom_blocks

    def start(self, request: RequestState, found: FoundPrefix) -> None:
        """Give it a slot and the blocks that were found, and announce those it will compute."""
        request.slot = self.tables.take_slot()
        self._adopt(request, found)
        num_blocks = num_blocks_for(len(request.tokens), self._config.block_size)
        request.num_promised = num_blocks - self._num_lasting_blocks(found)
        self._num_promised += request.num_promised
        self._announce(request)

    def has_room(self, request: RequestState, num_tokens: int) -> bool:
        """Whether `grow` would succeed."""
        short = self._blocks_short(request, num_tokens) + self._must_copy_tail(request)
        return self._allocator.can_allocate(short)

    def has_spare_room(self, request: RequestState, num_tokens: int) -> bool:
        """Whether `grow` would take nothing that others were promised or that admission needs."""
        short = self._blocks_short(request, num_tokens)
        left = self._allocator.num_free - self._num_promised - short
        return short <= 0 or left >= self._config.watermark_blocks

    def grow(self, request: RequestState, num_tokens: int) -> None:
        """Take the blocks that its next `num_tokens` tokens need; asserts `has_room`.

        A block that others hold as well, or can find, is copied before the first write to it.
        """
        if request.has_shared_tail:
            if self._must_copy_tail(request):
                self._copy_tail(request)
            request.has_shared_tail = False
        num_blocks = self._blocks_short(request, num_tokens)
        if num_blocks <= 0:
            return
        assert request.slot is not None
        blocks = self._allocator.allocate(num_blocks)
        self.tables.append(request.slot, blocks, at=len(request.blocks))
        request.blocks.extend(blocks)
        self._keep_promises(request, num_blocks)

    def shrink(self, request: RequestState, num_tokens: int = 0) -> None:
        """Give back the blocks behind its next `num_tokens` tokens: nothing is to lie there."""
        num_blocks = num_blocks_for(request.num_planned + num_tokens, self._config.block_size)
        self._allocator.free(request.blocks[num_blocks:])
        del request.blocks[num_blocks:]

    def publish(self, request: RequestState, num_planned: int) -> None:
        """Make its full blocks findable: those with known tokens that are planned to be computed.

        Findable before they are computed, since whoever finds them is computed later: batches run
        in order, and within a step every layer writes K and V before it attends.
        """
        if not self._shares_blocks(request):
            return
        block_size = self._config.block_size
        names = request.full_block_names(block_size, num_planned)
        if request.num_published < len(names):
            self._allocator.publish(
                request.blocks,
                names,
                request.tokens,
                root=request.origin.root,
                first=request.num_published,
            )
        request.num_published = max(request.num_published, len(names))

    def release(self, request: RequestState) -> None:
        """Take its blocks and its slot back; its tokens stay, so nothing but time is lost."""
        assert request.slot is not None
        self._num_promised -= request.num_promised
        self._allocator.withdraw(request.names[: request.num_announced], request)
        self._allocator.free(request.blocks)
        self.tables.give_back(request.slot)
        request.blocks = []
        request.slot = None
        request.num_planned = 0
        request.num_promised = 0
        request.num_published = 0
        request.num_announced = 0
        request.has_shared_tail = False

    def num_unfilled_slots(self, request: RequestState) -> int:
        """Slots of its blocks that hold no token; only its last block can have any.

        A last block that may be a sibling's as well counts as filled, not once for each of them.
        """
        if request.has_shared_tail:
            return 0
        return len(request.blocks) * self._config.block_size - request.num_planned

    def check(self, running: tuple[RequestState, ...]) -> None:
        """Assert every invariant of blocks, slots and promises, given all running requests."""
        self._allocator.check(request.blocks for request in running)
        slots = [request.slot for request in running]
        assert len(set(slots)) == len(slots), "two requests share a slot"
        assert len(slots) + self.tables.num_free_slots == self._config.max_num_seqs
        for request in running:
            assert request.num_planned <= len(request.blocks) * self._config.block_size
            if not request.has_shared_tail:
                assert not self._must_copy_tail(request), "a write would change another's block"
        promised = sum(request.num_promised for request in running)
        assert promised == self._num_promised, (promised, self._num_promised)

    def _shares_blocks(self, request: RequestState) -> bool:
        """With others, or (prefix caching off) among its own choices through a root of its own."""
        return self._config.enable_prefix_caching or request.origin.num_choices > 1

    def _is_coming(
        self, request: RequestState, siblings: Sequence[RequestState], num_tokens: int
    ) -> bool:
        """Whether a sibling computes more of the prompt than was found, and lives to share it.

        One that ends with its first token may be gone by then.
        """
        is_short = num_tokens < request.num_common_tokens
        return bool(siblings) and is_short and request.max_known > request.num_prompt_tokens + 1

    def _fork_of(self, source: RequestState, num_tokens: int) -> FoundPrefix:
        num_blocks = num_blocks_for(num_tokens, self._config.block_size)
        return FoundPrefix(tuple(source.blocks[:num_blocks]), num_tokens, source=source)

    def _adopt(self, request: RequestState, found: FoundPrefix) -> None:
        """Blocks that were found become its own as well."""
        assert request.slot is not None
        self._allocator.share(found.blocks)
        self.tables.append(request.slot, found.blocks, at=0)
        request.blocks = list(found.blocks)
        request.num_planned = found.num_tokens
        request.num_published = found.num_tokens // self._config.block_size
        if found.source is not None and found.num_tokens % self._config.block_size:
            request.has_shared_tail = found.source.has_shared_tail = True

    def _num_lasting_blocks(self, found: FoundPrefix) -> int:
        """Found blocks that need not be copied: all but a part-filled one."""
        return found.num_tokens // self._config.block_size

    def _must_copy_tail(self, request: RequestState) -> bool:
        """Whether its next token goes into a block that others hold or can find."""
        if request.num_planned % self._config.block_size == 0:
            return False
        tail = request.blocks[-1]
        return self._allocator.ref_count(tail) > 1 or self._allocator.is_named(tail)

    def _copy_tail(self, request: RequestState) -> None:
        """A block of its own in the place of its last one (copy-on-write)."""
        assert request.slot is not None
        (copy,) = self._allocator.allocate(1)
        tail = request.blocks[-1]
        self.moves.append(CopyBlock(tail, copy))
        self._allocator.free([tail])
        request.blocks[-1] = copy
        self.tables.append(request.slot, [copy], at=len(request.blocks) - 1)
        self._keep_promises(request, 1)
        self.num_copied_blocks += 1

    def _keep_promises(self, request: RequestState, num_blocks: int) -> None:
        num_kept = min(num_blocks, request.num_promised)
        request.num_promised -= num_kept
        self._num_promised -= num_kept

    def _announce(self, request: RequestState) -> None:
        if not self._shares_blocks(request):
            return
        num_names = len(request.tokens) // self._config.block_size
        names = request.full_block_names(self._config.block_size, len(request.tokens))
        self._allocator.announce(names[request.num_published : num_names], request)
        request.num_announced = num_names

    def _blocks_short(self, request: RequestState, num_tokens: int) -> int:
        needed = num_blocks_for(request.num_planned + num_tokens, self._config.block_size)
        return needed - len(request.blocks)
