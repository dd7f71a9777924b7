"""Whole-row operations on logits in short runs, which is quick and gives a row the same bits in
every batch.
"""

import torch
import torch.nn.functional as F

# Rows are searched and added up in runs of this many tokens, which keeps sums exact enough; it
# divides the vocabularies of the models in use.
RUN = 64


def in_runs(rows: torch.Tensor, filling: float) -> torch.Tensor:
    """[S, V] as [S, runs, RUN], the last run filled up."""
    lacking = -rows.shape[-1] % RUN
    if lacking:
        rows = F.pad(rows, (0, lacking), value=filling)
    return rows.view(len(rows), -1, RUN)


def largest(rows: torch.Tensor) -> torch.Tensor:
    """[S]: the first column that holds the largest value of each row."""
    runs = in_runs(rows, float("-inf"))
    run = runs.amax(-1).argmax(-1)
    inside = runs[torch.arange(len(runs), device=rows.device), run]
    return run * RUN + inside.argmax(-1)


def row_sums(rows: torch.Tensor) -> torch.Tensor:
    """[S, 1] float64."""
    return in_runs(rows, 0.0).sum(-1).sum(-1, keepdim=True, dtype=torch.float64)


def top_columns(rows: torch.Tensor, count: int) -> torch.Tensor:
    """[S, count]: columns of the largest values of each float32 row, of equal ones the first.

    They lie in the `count` runs with the largest maxima, so only those are looked through.
    """
    runs = in_runs(rows, float("-inf"))
    numbers = torch.arange(runs.shape[1], device=rows.device)
    chosen = numbers[_first_largest(runs.amax(-1), numbers.expand(len(rows), -1), count)]
    inside = runs.gather(1, chosen[:, :, None].expand(-1, -1, RUN)).flatten(1)
    columns = chosen[:, :, None] * RUN + torch.arange(RUN, device=rows.device)
    columns = columns.flatten(1)
    return columns.gather(1, _first_largest(inside, columns, count))


def _first_largest(values: torch.Tensor, numbers: torch.Tensor, count: int) -> torch.Tensor:
    """[S, count]: places of the largest values [S, N] float32, of equal ones the lowest number."""
    # Adding 0 makes both zeros one; then integers in the order of the numbers they stand for.
    bits = (values + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys = (ordered.long() << 32) - numbers
    return keys.topk(min(count, keys.shape[1]), dim=-1).indices
