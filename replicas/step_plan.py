"""A step while it is being planned, and how it becomes the arrays of a batch."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from replicas.batch import UNRESOLVED, Batch, BlockMove, SampleSpec
from replicas.block_table import BlockTables, num_blocks_for, slots_of
from replicas.request_state import RequestState


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A batch, and whose rows and samples it holds, in the same order.

    num_prompt_tokens: how many of the batch's tokens belong to prompts; the rest are output
    tokens, decoded now, guessed, or recomputed after a preemption.
    drafts: guesses at the end of a request's row, which then samples once more than it has guesses.
    decides_next: the next step cannot be planned before this one has its result.
    """

    batch: Batch
    requests: tuple[RequestState, ...]
    sampling: tuple[RequestState, ...]
    num_prompt_tokens: int
    drafts: Mapping[RequestState, tuple[int, ...]]
    decides_next: bool

    @property
    def num_draft_tokens(self) -> int:
        """Guesses in the batch."""
        return sum(len(draft) for draft in self.drafts.values())

    @property
    def has_outputs_alone(self) -> bool:
        """Whether every row is a token of an output, known or coming, and guesses after it."""
        num_tokens = self.batch.num_tokens - self.num_draft_tokens
        return self.num_prompt_tokens == 0 and num_tokens == self.batch.num_rows


class StepPlan:
    """Rows of (request, number of tokens), within a token budget.

    prefill_budget: prompt tokens with which no further prompt shall come in.
    Requests are changed only when the plan is sealed, so a row can still be dropped before.
    decides_next: the next step shall wait for the result of this one.
    """

    def __init__(self, token_budget: int, prefill_budget: int) -> None:
        self.budget_left = token_budget
        self._prefill_budget = prefill_budget
        self._num_prefill_tokens = 0
        self.decides_next = False
        self._requests: list[RequestState] = []
        self._counts: list[int] = []
        self._drafts: dict[RequestState, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: RequestState, num_tokens: int) -> None:
        """One more row."""
        assert 0 < num_tokens <= self.budget_left, (num_tokens, self.budget_left)
        self._requests.append(request)
        self._counts.append(num_tokens)
        self.budget_left -= num_tokens
        if num_tokens > 1:
            self._num_prefill_tokens += num_tokens

    @property
    def num_tokens(self) -> int:
        """Of all rows."""
        return sum(self._counts)

    @property
    def num_prefill_tokens(self) -> int:
        """Of all rows of more than one token."""
        return self._num_prefill_tokens

    @property
    def takes_prompts(self) -> bool:
        """Whether a further prompt, or a piece of one, shall come in.

        Once the processor is full, prompts side by side all end when the last of them would, so one
        after the other is better for all but the last. Beside many outputs more of them are taken:
        the outputs' own tokens, computed in every step, would become most of the work.
        """
        num_prefill = self._num_prefill_tokens
        num_others = self.num_tokens - num_prefill
        return self.budget_left > 0 and num_prefill < max(self._prefill_budget, num_others)

    def guess(self, request: RequestState, draft: tuple[int, ...]) -> None:
        """A row of one token, which is the last one known or coming, goes on with guesses."""
        row = self._requests.index(request)
        assert self._counts[row] == 1, self._counts[row]
        assert 0 < len(draft) <= self.budget_left, (len(draft), self.budget_left)
        self._counts[row] += len(draft)
        self._drafts[request] = draft
        self.decides_next = True
        self.budget_left -= len(draft)

    def rows(self) -> list[tuple[RequestState, int]]:
        """What has been planned so far."""
        return list(zip(self._requests, self._counts, strict=True))

    def drop_preempted(self) -> None:
        """Take out rows of requests that have lost their place since they were added."""
        kept = [(request, count) for request, count in self.rows() if request.is_running]
        self.budget_left += sum(self._counts) - sum(count for _request, count in kept)
        self._requests = [request for request, _count in kept]
        self._counts = [count for _request, count in kept]
        self._num_prefill_tokens = sum(count for count in self._counts if count > 1)

    def seal(
        self, step: int, tables: BlockTables, block_size: int, moves: tuple[BlockMove, ...] = ()
    ) -> PlannedStep:
        """Turn the rows into a batch, and count its tokens as planned and its samples as coming.

        moves: what the batch moves before it computes; there may be no rows beside them.
        """
        starts = np.array([request.num_planned for request in self._requests], dtype=np.int64)
        slots = np.array([request.slot for request in self._requests], dtype=np.int32)
        counts = np.array(self._counts, dtype=np.int64)
        token_ids: list[int] = []
        num_prompt_tokens = 0
        for request, count in zip(self._requests, self._counts, strict=True):
            draft = self._drafts.get(request, ())
            num_prompt_tokens += _take_tokens(request, count - len(draft), token_ids)
            token_ids.extend(draft)
        samples, sampling = self._take_samples()
        query_start = np.zeros(len(counts) + 1, dtype=np.int32)
        np.cumsum(counts, out=query_start[1:])
        rows = np.repeat(np.arange(len(counts)), counts)
        positions = np.arange(len(rows)) - query_start[rows] + starts[rows]
        context_lens = (starts + counts).astype(np.int32)
        most_blocks = num_blocks_for(int(context_lens.max(initial=0)), block_size)
        block_tables = tables.rows(slots, most_blocks)
        batch = Batch(
            step=step,
            token_ids=np.array(token_ids, dtype=np.int64),
            positions=positions,
            slot_mapping=slots_of(block_tables, rows, positions, block_size),
            query_start=query_start,
            context_lens=context_lens,
            block_tables=block_tables,
            slots=slots,
            samples=tuple(samples),
            moves=moves,
        )
        return PlannedStep(
            batch=batch,
            requests=tuple(self._requests),
            sampling=tuple(sampling),
            num_prompt_tokens=num_prompt_tokens,
            drafts=self._drafts,
            decides_next=self.decides_next,
        )

    def _take_samples(self) -> tuple[list[SampleSpec], list[RequestState]]:
        samples: list[SampleSpec] = []
        sampling: list[RequestState] = []
        for row, request in enumerate(self._requests):
            num_known = len(request.tokens) + request.num_unresolved
            if request.num_planned != num_known:
                continue
            num_drafts = len(self._drafts.get(request, ()))
            params = request.origin.sampling
            first_free = request.num_prompt_tokens + params.min_tokens
            for position in range(num_known, num_known + num_drafts + 1):
                forbid_end = position < first_free
                samples.append(SampleSpec(row, params, request.choice, position, forbid_end))
            sampling.append(request)
            request.num_unresolved += num_drafts + 1
            request.num_planned += num_drafts
        return samples, sampling


def _take_tokens(request: RequestState, count: int, token_ids: list[int]) -> int:
    """Append a row's tokens, move its planned tokens on; how many of them are prompt tokens."""
    start = request.num_planned
    stop = start + count
    request.num_planned = stop
    if count == 1:
        token_ids.append(request.tokens[start] if start < len(request.tokens) else UNRESOLVED)
    else:
        token_ids.extend(request.tokens[start:stop])
        token_ids.extend([UNRESOLVED] * (stop - max(start, len(request.tokens))))
    if start >= request.num_prompt_tokens:
        return 0
    return min(stop, request.num_prompt_tokens) - start
