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

# Tokens looked at, most likely first, before a whole row is sorted. A constant, or a row's bits
# would depend on its neighbours.
_CANDIDATES = 1024
# Weights are added up in runs of this many tokens first, so that no long running sum is needed.
_RUN = 256
# Below this temperature in vLLM's terms the choice is greedy anyway; dividing by it overflows.
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
            return logits.argmax(-1)
        if len(chosen) == len(samples):
            return self._draw(logits.float(), samples)
        tokens = logits.argmax(-1)
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
        weights = weights.masked_fill_(weights < column(lambda params: params.min_p), 0.0)
        cut = [
            row
            for row, sample in enumerate(samples)
            if 0 < sample.sampling.top_k < self._vocab_size or sample.sampling.top_p < 1.0
        ]
        if not cut:
            return _invert(weights, chances)
        rows = torch.tensor(cut, device=logits.device)
        drawn = _draw_cut(
            weights.index_select(0, rows),
            chances.index_select(0, rows),
            [samples[row].sampling for row in cut],
        )
        if len(cut) == len(samples):
            return drawn
        return _invert(weights, chances).index_copy_(0, rows, drawn)


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
    num_rows, width = weights.shape
    if width % _RUN:
        weights = torch.nn.functional.pad(weights, (0, _RUN - width % _RUN))
    runs = weights.view(num_rows, -1, _RUN)
    run_sums = runs.sum(-1, dtype=torch.float32)
    run, share = _place(run_sums, chances)
    inside = runs[torch.arange(num_rows, device=weights.device), run]
    column, _ = _place(inside, share)
    return run * _RUN + column


def _place(weights: torch.Tensor, chances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Column [S] where each chance [S, 1] falls, and how far into it [S, 1], in [0, 1)."""
    cumulated = weights.double().cumsum(-1)
    total = cumulated[:, -1:]
    # Never on the far edge, where rounding could pick a column of no weight.
    target = torch.minimum(chances * total, torch.nextafter(total, torch.zeros_like(total)))
    column = (cumulated <= target).sum(-1, keepdim=True)
    own = weights.gather(1, column).double()
    before = cumulated.gather(1, column) - own
    share = ((target - before) / own).clamp_(0.0, 1.0)
    return column[:, 0], share


def _draw_cut(
    weights: torch.Tensor, chances: torch.Tensor, params: Sequence[SamplingParams]
) -> torch.Tensor:
    """[S] from rows with top_k or top_p: among the likeliest few, or the whole row if need be."""
    width = weights.shape[-1]
    totals = _row_sums(weights)
    values, ids = _likeliest(weights, min(_CANDIDATES, width))
    kept, is_whole = _keep(values, totals, params, width)
    drawn = ids.gather(1, _invert(kept, chances)[:, None])[:, 0]
    rows = (~is_whole).nonzero()[:, 0]
    if not len(rows):
        return drawn
    values, ids = weights.index_select(0, rows).sort(stable=True, dim=-1, descending=True)
    own = [params[row] for row in rows.tolist()]
    kept, _ = _keep(values, totals.index_select(0, rows), own, width)
    redrawn = ids.gather(1, _invert(kept, chances.index_select(0, rows))[:, None])[:, 0]
    return drawn.index_copy_(0, rows, redrawn)


def _likeliest(weights: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest weights of each row and their ids, equal ones in the order of ids."""
    values, ids = weights.topk(count, dim=-1)
    ids, order = ids.sort(-1)
    values, order = values.gather(1, order).sort(stable=True, dim=-1, descending=True)
    return values, ids.gather(1, order)


def _row_sums(weights: torch.Tensor) -> torch.Tensor:
    width = weights.shape[-1]
    if width % _RUN:
        weights = torch.nn.functional.pad(weights, (0, _RUN - width % _RUN))
    runs = weights.view(len(weights), -1, _RUN).sum(-1)
    return runs.double().cumsum(-1)[:, -1:]


def _keep(
    values: torch.Tensor,
    totals: torch.Tensor,
    params: Sequence[SamplingParams],
    width: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorted values [S, K] with what top_k and then top_p rule out set to 0, and whether that
    is final [S]: the K columns of `width` in all hold everything that is kept.

    top_k keeps values equal to the k-th; top_p keeps a token while what stands before it is
    less than top_p of what top_k kept.
    """
    column = _columns(params, values.device)
    num_columns = values.shape[-1]
    ks = column(lambda each: float(each.top_k or width)).long().clamp_(max=width)
    smallest = values.gather(1, ks.clamp(max=num_columns) - 1)
    cut = values.masked_fill(values < smallest, 0.0)
    cumulated = cut.double().cumsum(-1)
    # Without top_k the share is of the whole row, also of what lies behind these columns.
    totals = torch.where(ks < width, cumulated[:, -1:], totals)
    top_ps = column(lambda each: each.top_p).double()
    before = cumulated - cut.double()
    kept = cut.masked_fill((before >= top_ps * totals) & (top_ps < 1.0), 0.0)
    if num_columns == width:
        return kept, torch.ones(len(kept), dtype=torch.bool, device=kept.device)
    # A kept token as light as the last column may have equals outside of these columns.
    num_kept = (kept > 0.0).sum(-1, keepdim=True)
    lightest, outside = kept.gather(1, num_kept - 1)[:, 0], values[:, -1]
    return kept, (lightest > outside) | (outside == 0.0)
