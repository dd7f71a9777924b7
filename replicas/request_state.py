"""What the engine knows of one choice of one request while it waits and runs.

One idea carries all of it: a request has known tokens and computed tokens, and every step makes
some requests' computed tokens catch up. Prefill, chunks, decode, prefix hits, resumption after
preemption and adoption of an earlier attempt are the same thing.

    tokens      |<----- prompt ----->|<- output ->| unresolved |   being sampled now
    planned     |<------------------------------->|                computed by steps in flight
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kvstore.block_hash import block_hashes
from replicas.handoff import HandoffOut
from replicas.request import EngineRequest, FinishReason, SamplingParams, Timeline


class RequestState:
    """One choice: its tokens, its blocks and its place. Mutated by the scheduler alone.

    tokens: known token ids. num_unresolved: tokens that batches in flight will add to them, at
    most: guesses may turn out wrong.
    num_planned: tokens whose K and V are present once the batches in flight have run.
    max_known: known tokens at which the choice ends by length.
    blocks: block ids in order. names: block hashes of the full blocks known so far.
    num_published: leading blocks that were made findable. num_announced: leading names that were
    announced as going to be computed. num_promised: blocks that admission counted on for its
    known tokens and that it has not taken yet.
    siblings: all choices of its request, itself among them; none once it ended.
    is_parked: it carries no beam of its request's search now, and neither waits nor runs.
    is_held: its last step is computed, but its next token depends on siblings that are not.
    has_shared_tail: others may hold its part-filled last block, which is then copied before it
    writes there.
    goes_on_elsewhere: another engine samples what comes after its first new token.
    """

    __slots__ = (
        "_timeline",
        "blocks",
        "choice",
        "finish_reason",
        "goes_on_elsewhere",
        "has_shared_tail",
        "is_held",
        "is_parked",
        "max_known",
        "names",
        "num_announced",
        "num_cached_tokens",
        "num_overtakes",
        "num_planned",
        "num_preemptions",
        "num_promised",
        "num_prompt_tokens",
        "num_published",
        "num_streamed",
        "num_unresolved",
        "origin",
        "pending_since",
        "siblings",
        "slot",
        "tokens",
    )

    def __init__(
        self,
        origin: EngineRequest,
        *,
        choice: int,
        arrived_at: float,
        max_model_len: int,
        received_at: float | None = None,
    ) -> None:
        self.origin = origin
        self.choice = choice
        self.tokens = [*origin.prompt_token_ids, *origin.emitted_token_ids]
        self.num_prompt_tokens = len(origin.prompt_token_ids)
        self.max_known = min(self.num_prompt_tokens + origin.sampling.max_tokens, max_model_len)
        num_known = len(self.tokens)
        self.goes_on_elsewhere = (
            isinstance(origin.handoff, HandoffOut) and self.max_known > num_known + 1
        )
        if self.goes_on_elsewhere:
            self.max_known = num_known + 1
        self.num_unresolved = 0
        self.num_planned = 0
        self.blocks: list[int] = []
        self.names: list[bytes] = list(origin.block_hashes)
        self.num_published = 0
        self.num_announced = 0
        self.num_streamed = len(origin.emitted_token_ids)
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.num_promised = 0
        self.num_overtakes = 0
        self.pending_since: float | None = None
        self.siblings: Sequence[RequestState] = ()
        self.has_shared_tail = False
        self.is_parked = False
        self.is_held = False
        self.slot: int | None = None
        self.finish_reason: FinishReason | None = None
        self._timeline = Timeline(arrived_at, received_at=received_at)

    @property
    def sampling(self) -> SamplingParams:
        """How this choice samples and ends."""
        return self.origin.sampling

    @property
    def num_output_tokens(self) -> int:
        """Known tokens after the prompt, those of earlier attempts included."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_missing(self) -> int:
        """Tokens that must be computed before the next one can be sampled; 0 when none will be."""
        known = len(self.tokens) + self.num_unresolved
        return 0 if known >= self.max_known else known - self.num_planned

    @property
    def num_common_tokens(self) -> int:
        """Known tokens whose K and V a sibling's are: the prompt, but not the last known token.

        That one must be computed here, for what is sampled after it.
        """
        return min(self.num_prompt_tokens, len(self.tokens) - 1)

    @property
    def is_running(self) -> bool:
        """Whether it has a slot and may hold blocks."""
        return self.slot is not None

    @property
    def has_begun(self) -> bool:
        """Whether it was ever scheduled, or ended."""
        return self._timeline.scheduled_at is not None or self.finish_reason is not None

    @property
    def arrived_at(self) -> float:
        """When the engine admitted it, in seconds of the engine's clock."""
        return self._timeline.arrived_at

    @property
    def timeline(self) -> Timeline:
        """When things happened to it so far."""
        if self._timeline.num_preemptions != self.num_preemptions:
            self._timeline = replace(self._timeline, num_preemptions=self.num_preemptions)
        return self._timeline

    def reach_boundary(self, now: float) -> None:
        """A step is planned, for the first time since it was admitted."""
        self._timeline = replace(self._timeline, arrived_at=now)

    def mark(self, **moments: float) -> None:
        """Record moments of its life, each the first time only."""
        for name, moment in moments.items():
            if getattr(self._timeline, name) is None:
                self._timeline = replace(self._timeline, **{name: moment})  # type: ignore[arg-type]

    def full_block_names(self, block_size: int, num_tokens: int) -> Sequence[bytes]:
        """Names of the full blocks among the first `num_tokens` known tokens."""
        num_full = min(num_tokens, len(self.tokens)) // block_size
        if num_full > len(self.names):
            start = len(self.names) * block_size
            self.names.extend(self._more_names(start, num_full * block_size, block_size))
        return self.names[:num_full]

    def parent_name(self, block_index: int) -> bytes:
        """Name of the block before the given one, or the root."""
        return self.names[block_index - 1] if block_index else self.origin.root

    def _more_names(self, start: int, stop: int, block_size: int) -> Iterable[bytes]:
        parent = self.names[-1] if self.names else self.origin.root
        return block_hashes(self.tokens[start:stop], block_size=block_size, root=parent)
