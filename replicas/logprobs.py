"""How likely the model itself found the sampled token, and which tokens it found likeliest."""

from collections.abc import Sequence

import numpy as np
import torch

from replicas.batch import UNRESOLVED, Sampled, SampleSpec
from replicas.row_runs import row_sums, top_columns


def with_logprobs(
    tokens: torch.Tensor, logits: torch.Tensor, samples: Sequence[SampleSpec]
) -> Sampled:
    """The sampled tokens [S], with the log-probabilities that `samples` ask for, if any.

    logits: [S, vocab], as the model gave them, before temperature and masks (vLLM's raw_logprobs).
    In float32, a row's bits independent of its neighbours.
    """
    token_ids = tokens.cpu().numpy()
    asked = [
        (row, sample.sampling.num_logprobs)
        for row, sample in enumerate(samples)
        if sample.sampling.num_logprobs is not None
    ]
    if not asked:
        return Sampled(token_ids)
    rows = np.array([row for row, _count in asked])
    count = min(max(count for _row, count in asked), logits.shape[1])
    index = torch.from_numpy(rows).to(logits.device)
    own = logits if len(rows) == len(logits) else logits.index_select(0, index)
    own = own.float()
    own = own - own.amax(-1, keepdim=True)
    log_total = row_sums(own.exp()).log().float()

    def spread(values: torch.Tensor, filling: float) -> np.ndarray:
        """Values of the rows that asked among rows of `filling`."""
        found = values.cpu().numpy()
        full = np.full((len(samples), *found.shape[1:]), filling, dtype=found.dtype)
        full[rows] = found
        return full

    chosen = own.gather(1, tokens.index_select(0, index)[:, None]) - log_total
    logprobs = spread(chosen[:, 0], np.nan)
    if not count:
        return Sampled(token_ids, logprobs)
    columns = top_columns(own, count)
    tops = own.gather(1, columns) - log_total
    return Sampled(token_ids, logprobs, spread(columns, UNRESOLVED), spread(tops, np.nan))
