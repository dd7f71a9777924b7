"""Chooses the next token of every row of a batch at once; no row's choice depends on another's.

The order of the filters is vLLM's: temperature, min_p, top_k, top_p. One uniform number for each
row, from its own counter, is looked up in the cumulated weights of what is left.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from replicas.batch import SampleSpec
from replicas.counter_random import uniforms
from replicas.request import SamplingParams
from replicas.row_runs import RUN, in_runs, largest, row_sums

# Weights are sorted into buckets by their first bits: their exponent and 4 bits more. The largest
# weight is 1.
_BUCKET_SHIFT = 19
_NUM_BUCKETS = (0x3F800000 >> _BUCKET_SHIFT) + 1
# Below this temperature the choice is greedy, as in vLLM: dividing by it would overflow.
_LEAST_TEMPERATURE = 1e-5


class Sampler:
    """end_token_ids: the model's own end tokens, which forbid_end rules out."""

    def __init__(self, end_token_ids: Sequence[int], *, vocab_size: int) -> None:
        self._end_token_ids = tuple(end_token_ids)
        self._vocab_size = vocab_size

    def sample(self, logits: torch.Tensor, samples: Sequence[SampleSpec]) -> torch.Tensor:
        """Token ids [S] int64 from logits [S, vocab] for as many samples, in their order."""
        logits = self._forbid_ends(logits, samples)
        chosen = [row for row, sample in enumerate(samples) if not _is_greedy(sample.sampling)]
        if not chosen:
            return largest(logits)
        if len(chosen) == len(samples):
            return self._draw(logits.float(), samples)
        tokens = largest(logits)
        rows = torch.tensor(chosen, device=logits.device)
        drawn = self._draw(logits.index_select(0, rows).float(), [samples[row] for row in chosen])
        return tokens.index_copy_(0, rows, drawn)

    def _forbid_ends(self, logits: torch.Tensor, samples: Sequence[SampleSpec]) -> torch.Tensor:
        rows: list[int] = []
        tokens: list[int] = []
        for row, sample in enumerate(samples):
            if sample.forbid_end:
                ends = (*self._end_token_ids, *sample.sampling.stop_token_ids)
                ends = tuple(end for end in ends if 0 <= end < self._vocab_size)
                rows.extend([row] * len(ends))
                tokens.extend(ends)
        if not rows:
            return logits
        masked = logits.clone()
        masked[rows, tokens] = float("-inf")
        return masked

    def _draw(self, logits: torch.Tensor, samples: Sequence[SampleSpec]) -> torch.Tensor:
        column = _columns([sample.sampling for sample in samples], logits.device)
        chances = torch.from_numpy(
            uniforms(
                [sample.sampling.seed for sample in samples],
                [sample.choice for sample in samples],
                [sample.position for sample in samples],
            )
        ).to(logits.device)[:, None]
        temperatures = column(lambda params: max(params.temperature, _LEAST_TEMPERATURE))
        # 1 for the most likely token: min_p is then a threshold, and nothing overflows.
        logits = logits / temperatures
        weights = torch.exp(logits - logits.amax(-1, keepdim=True))
        # A model that overflows yields a meaningless token, but must not end the engine.
        weights = weights.nan_to_num_(nan=0.0)
        weights = weights.masked_fill_(weights < column(lambda params: params.min_p), 0.0)
        weights = _cut_top_k(weights, [sample.sampling for sample in samples])
        cut = [row for row, sample in enumerate(samples) if sample.sampling.top_p < 1.0]
        if cut:
            rows = torch.tensor(cut, device=logits.device)
            top_ps = column(lambda params: params.top_p).double().index_select(0, rows)
            kept = _cut_top_p(weights.index_select(0, rows), top_ps)
            weights = weights.index_copy_(0, rows, kept)
        return _invert(weights, chances)


def _is_greedy(params: SamplingParams) -> bool:
    return params.temperature < _LEAST_TEMPERATURE


def _columns(
    params: Sequence[SamplingParams], device: torch.device
) -> Callable[[Callable[[SamplingParams], float]], torch.Tensor]:
    def column(read: Callable[[SamplingParams], float]) -> torch.Tensor:
        values = np.array([read(each) for each in params], dtype=np.float32)
        return torch.from_numpy(values).to(device)[:, None]

    return column


def _invert(weights: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    """[S]: for each row of weights [S, V], the column in which its chance [S, 1] falls."""
    runs = in_runs(weights, 0.0)
    run, share = _place(runs.sum(-1), chances)
    inside = runs[torch.arange(len(runs), device=weights.device), run]
    column, _ = _place(inside, share)
    return run * RUN + column


def _place(weights: torch.Tensor, chances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Column [S] where each chance [S, 1] falls, and how far into it [S, 1], in [0, 1]."""
    cumulated = weights.double().cumsum(-1)
    total = cumulated[:, -1:]
    # Never on the far edge, where rounding could pick a column of no weight.
    target = torch.minimum(chances * total, torch.nextafter(total, torch.zeros_like(total)))
    column = (cumulated <= target).sum(-1, keepdim=True).clamp_(max=weights.shape[-1] - 1)
    own = weights.gather(1, column).double()
    before = cumulated.gather(1, column) - own
    share = ((target - before) / own).clamp_(0.0, 1.0)
    return column[:, 0], share


def _cut_top_k(weights: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Weights below the k-th largest of their row set to 0, in place; equals of it stay."""
    width = weights.shape[-1]
    rows = [row for row, each in enumerate(params) if 0 < each.top_k < width]
    if not rows:
        return weights
    index = torch.tensor(rows, device=weights.device)
    ks = torch.tensor([params[row].top_k for row in rows], device=weights.device)
    own = weights.index_select(0, index)
    smallest = own.topk(int(ks.max()), dim=-1).values.gather(1, ks[:, None] - 1)
    return weights.index_copy_(0, index, own.masked_fill_(own < smallest, 0.0))


def _cut_top_p(weights: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:
    """Weights [S, V] with what top_p < 1 [S, 1] rules out set to 0.

    A token stays while the likelier ones before it (of equal ones, those of lower id) hold less
    than top_p of the row. Quicker than sorting: the border lies in one bucket of like weights,
    and there it is found by bisection of their bits.
    """
    bits = weights.view(torch.int32)
    buckets = bits >> _BUCKET_SHIFT
    sums = torch.zeros(len(weights), _NUM_BUCKETS, dtype=torch.float64, device=weights.device)
    sums.scatter_add_(1, buckets.long(), weights.double())
    down_to = sums.flip(1).cumsum(1).flip(1)
    wanted = top_ps * down_to[:, :1]
    border = (down_to >= wanted).sum(-1, keepdim=True) - 1
    missing = wanted - (down_to - sums).gather(1, border)
    border = border.int()
    rows, columns = (buckets == border).nonzero(as_tuple=True)
    counts = torch.bincount(rows, minlength=len(weights))
    starts = counts.cumsum(0) - counts
    places = torch.arange(len(rows), device=rows.device) - starts.index_select(0, rows)
    packed = weights.new_zeros(len(weights), max(int(counts.max()), 1))
    packed[rows, places] = weights[rows, columns]
    packed = _cut_bucket(packed, missing, border << _BUCKET_SHIFT)
    kept = weights.masked_fill(buckets <= border, 0.0)
    kept[rows, columns] = packed[rows, places]
    return kept


def _cut_bucket(weights: torch.Tensor, wanted: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """Weights [S, C] of one bucket with all set to 0 that a sum of `wanted` [S, 1] can do without.

    low: [S, 1] int32, the bits at which the bucket begins.
    """
    bits = weights.view(torch.int32)
    high = low + (1 << _BUCKET_SHIFT) - 1
    low = low - 1
    for _ in range(_BUCKET_SHIFT + 1):
        middle = (low + high) >> 1
        is_enough = row_sums(weights.masked_fill(bits <= middle, 0.0)) >= wanted
        low, high = torch.where(is_enough, middle, low), torch.where(is_enough, high, middle)
    heavier = weights.masked_fill(bits <= high, 0.0)
    border = high.view(torch.float32).double()
    num_equal = ((wanted - row_sums(heavier)) / border).ceil()
    equal = bits == high
    return torch.where(equal & (equal.cumsum(-1) <= num_equal), weights, heavier)
