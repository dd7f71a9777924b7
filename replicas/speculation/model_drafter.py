"""Guesses with a small model, whose K and V lie in the requests' own blocks.

Speculative decoding as Leviathan et al. (2023) have it, but for the exact verification here.

The small model sees a request only once guessing for it seems to pay, and then catches up with all
that is known: a full engine never computes anything twice for a guess it does not make.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from replicas.request_state import RequestState
from replicas.speculation.draft_batch import DraftBatch, DraftRow
from replicas.speculation.drafter import Depths, Drafts
from replicas.speculation.hit_rates import HitRates, OwnHitRates

# Tokens that the small model catches up with before one step, over all requests; the others wait
# as long as that takes.
MAX_TOKENS_A_STEP = 512
# A request whose guesses failed is tried again after so many tokens.
TRY_AGAIN_AFTER_TOKENS = 64
_SMOOTHING = 0.2

RunDraft = Callable[[DraftBatch], Sequence[Sequence[int]]]


@dataclass(slots=True)
class _Seen:
    """What the small model has of one request: K and V of its first num_tokens, in `blocks`.

    tried_at: known tokens when guesses were last verified.
    """

    rates: OwnHitRates
    num_tokens: int = 0
    num_preemptions: int = 0
    blocks: list[int] = field(default_factory=list)
    tried_at: int = 0


class ModelDrafter:
    """Implements replicas.speculation.drafter.Drafter over a small model.

    run: computes a batch with it, [R] lists of guesses, between two steps of the engine's runner.
    clock: seconds.
    """

    needs_last_token = True

    def __init__(self, run: RunDraft, *, block_size: int, clock: Callable[[], float]) -> None:
        self._run = run
        self._block_size = block_size
        self._clock = clock
        self._rates = HitRates()
        self._seen: dict[RequestState, _Seen] = {}
        self.pass_s = 0.0

    def __len__(self) -> int:
        return len(self._seen)

    def look_at(self, requests: Sequence[RequestState]) -> None:
        """Nothing is computed before it is known to pay."""

    def chances(self, request: RequestState, count: int) -> Sequence[float]:
        """By how far its guesses and those of others held."""
        seen = self._state_of(request)
        rates = seen.rates
        # Nobody knows how guesses would do that are not made.
        if len(request.tokens) - seen.tried_at >= TRY_AGAIN_AFTER_TOKENS:
            rates = OwnHitRates(HitRates())
        return rates.chances(0, count)

    def draft(self, depths: Depths) -> Drafts:
        """Guesses for those that the small model has caught up with, or can at once."""
        rows: list[tuple[RequestState, DraftRow]] = []
        num_left = MAX_TOKENS_A_STEP
        for request, depth in depths.items():
            seen = self._state_of(request)
            self._forget_moved(request, seen)
            num_missing = len(request.tokens) - seen.num_tokens
            count = min(num_missing, num_left)
            if not count:
                continue
            num_left -= count
            tokens = request.tokens[seen.num_tokens : seen.num_tokens + count]
            is_ready = count == num_missing
            row = DraftRow(tokens, seen.num_tokens, request.blocks, depth if is_ready else 0)
            rows.append((request, row))
        if not rows:
            return {}
        guesses = self._timed_run([row for _request, row in rows])
        drafts: dict[RequestState, tuple[int, ...]] = {}
        for (request, row), guess in zip(rows, guesses, strict=True):
            seen = self._seen[request]
            seen.num_tokens += len(row.token_ids)
            seen.blocks = list(request.blocks)
            if row.depth:
                drafts[request] = tuple(guess[: row.depth])
        return drafts

    def note_verified(self, request: RequestState, num_guesses: int, num_accepted: int) -> None:
        """Accepted guesses were computed here too, all but the last one that was made."""
        seen = self._state_of(request)
        seen.tried_at = len(request.tokens)
        seen.num_tokens += min(num_accepted, num_guesses - 1)
        for index in range(min(num_accepted + 1, num_guesses)):
            seen.rates.note(index, index < num_accepted)

    def forget(self, request: RequestState) -> None:
        """The request ended."""
        self._seen.pop(request, None)

    def _timed_run(self, rows: Sequence[DraftRow]) -> Sequence[Sequence[int]]:
        started = self._clock()
        guesses = self._run(DraftBatch.of(rows, self._block_size))
        seconds = (self._clock() - started) / max(1, *(row.depth for row in rows))
        # Catching up with a prompt is done once, and says nothing of what a guess takes.
        if all(len(row.token_ids) <= row.depth + 1 for row in rows):
            counted = min(seconds, 2.0 * self.pass_s) if self.pass_s else seconds
            self.pass_s += (counted - self.pass_s) * (_SMOOTHING if self.pass_s else 1.0)
        return guesses

    def _forget_moved(self, request: RequestState, seen: _Seen) -> None:
        """What lies in blocks that are not its own any more is lost."""
        num_blocks = -(-seen.num_tokens // self._block_size)
        is_moved = seen.blocks[:num_blocks] != request.blocks[:num_blocks]
        if is_moved or seen.num_preemptions != request.num_preemptions:
            seen.num_tokens = 0
            seen.num_preemptions = request.num_preemptions

    def _state_of(self, request: RequestState) -> _Seen:
        seen = self._seen.get(request)
        if seen is None:
            seen = self._seen[request] = _Seen(OwnHitRates(self._rates))
            seen.tried_at = len(request.tokens)
        return seen
