"""What of the KV cache each running request holds: found, taken, grown, published, given back.

The scheduler decides who runs; this says what that takes in blocks and does the bookkeeping, so
that a request's blocks change in one place only (lecture 10, 10.3 and 10.4).
"""

from replicas.batch import BlockMove
from replicas.block_allocator import BlockAllocator, PrefixMatch
from replicas.block_table import BlockTables, num_blocks_for
from replicas.config import SchedulerConfig
from replicas.request_state import RequestState


class RequestMemory:
    """Blocks and slots of the running requests, in one pool that all of them share.

    moves: block contents that the step being planned moves before it computes, in this order. Each
    sees all that earlier steps compute, since batches are executed as they were planned.
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

    def take_moves(self) -> tuple[BlockMove, ...]:
        """The moves of the step being planned, which is about to be sealed."""
        moves = tuple(self.moves)
        self.moves.clear()
        return moves

    def match(self, request: RequestState) -> PrefixMatch:
        """Findable blocks of its known tokens, less the last token, which must be computed."""
        if not self._shares_blocks(request):
            return PrefixMatch((), 0, next_is_pending=False)
        names = request.full_block_names(self._config.block_size, len(request.tokens) - 1)
        return self._allocator.find_prefix(names)

    def fits(self, request: RequestState, match: PrefixMatch, *, is_alone: bool) -> bool:
        """Whether its known tokens and some headroom fit above the watermark.

        With nothing else running only the tokens themselves count: the request would otherwise
        wait for room that nobody will give back.
        """
        needed = num_blocks_for(len(request.tokens) + 1, self._config.block_size)
        needed -= len(match.blocks)
        left = self._allocator.num_free - match.num_free_blocks - self._num_promised - needed
        if is_alone:
            return left >= 0
        return left >= self._config.watermark_blocks + self._config.headroom_blocks

    def start(self, request: RequestState, match: PrefixMatch) -> None:
        """Give it a slot and the blocks that were found, and announce those it will compute."""
        request.slot = self.tables.take_slot()
        self._allocator.share(match.blocks)
        self.tables.append(request.slot, match.blocks, at=0)
        request.blocks = list(match.blocks)
        request.num_published = len(match.blocks)
        request.num_planned = len(match.blocks) * self._config.block_size
        num_blocks = num_blocks_for(len(request.tokens), self._config.block_size)
        request.num_promised = num_blocks - len(match.blocks)
        self._num_promised += request.num_promised
        self._announce(request)

    def has_room(self, request: RequestState, num_tokens: int) -> bool:
        """Whether `grow` would succeed."""
        return self._allocator.can_allocate(self._blocks_short(request, num_tokens))

    def grow(self, request: RequestState, num_tokens: int) -> None:
        """Take the blocks that its next `num_tokens` tokens need; asserts `has_room`."""
        num_blocks = self._blocks_short(request, num_tokens)
        if num_blocks <= 0:
            return
        assert request.slot is not None
        blocks = self._allocator.allocate(num_blocks)
        self.tables.append(request.slot, blocks, at=len(request.blocks))
        request.blocks.extend(blocks)
        num_kept_promises = min(num_blocks, request.num_promised)
        request.num_promised -= num_kept_promises
        self._num_promised -= num_kept_promises

    def publish(self, request: RequestState, num_planned: int) -> None:
        """Make its full blocks findable: those with known tokens that are planned to be computed.

        Findable before they are computed, since whoever finds them is computed later: batches run
        in order, and within a step every layer writes K and V before it attends.
        """
        if not self._shares_blocks(request):
            return
        block_size = self._config.block_size
        names = request.full_block_names(block_size, num_planned)
        for index in range(request.num_published, len(names)):
            self._allocator.publish(
                request.blocks[index],
                names[index],
                parent=request.parent_name(index),
                token_ids=request.tokens[index * block_size : (index + 1) * block_size],
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

    def num_unfilled_slots(self, request: RequestState) -> int:
        """Slots of its blocks that hold no token; only its last block can have any."""
        return len(request.blocks) * self._config.block_size - request.num_planned

    def check(self, running: tuple[RequestState, ...]) -> None:
        """Assert every invariant of blocks, slots and promises, given all running requests."""
        self._allocator.check(request.blocks for request in running)
        slots = [request.slot for request in running]
        assert len(set(slots)) == len(slots), "two requests share a slot"
        assert len(slots) + self.tables.num_free_slots == self._config.max_num_seqs
        for request in running:
            assert request.num_planned <= len(request.blocks) * self._config.block_size
        promised = sum(request.num_promised for request in running)
        assert promised == self._num_promised, (promised, self._num_promised)

    def _shares_blocks(self, request: RequestState) -> bool:
        """With others, or (prefix caching off) among its own choices through a root of its own."""
        return self._config.enable_prefix_caching or request.origin.num_choices > 1

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
