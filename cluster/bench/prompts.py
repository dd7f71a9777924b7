"""Makes the requests of the benchmarks: tokens by chance, behind a prefix where one is shared."""

import numpy as np

from kvstore.block_hash import block_hashes, root_hash
from replicas.config import SchedulerConfig
from replicas.models.prepared_model import PreparedModel
from replicas.request import EngineRequest, SamplingParams


class Prompts:
    """Requests that nobody asked before, so that nothing of them is cached but what shall be."""

    def __init__(self, model: PreparedModel) -> None:
        self._model = model
        self._rng = np.random.default_rng(11)
        self._number = 0

    def tokens(self, num_tokens: int) -> tuple[int, ...]:
        """Tokens by chance."""
        return tuple(self._rng.integers(100, self._model.vocab_size, num_tokens).tolist())

    def new(
        self, num_tokens: int, *, max_tokens: int, prefix: tuple[int, ...] = ()
    ) -> EngineRequest:
        """Another one, which may begin as others did."""
        self._number += 1
        ids = (*prefix, *self.tokens(num_tokens))
        block_size = SchedulerConfig().block_size
        root = root_hash(fingerprint=self._model.fingerprint, block_size=block_size)
        return EngineRequest(
            f"bench{self._number}",
            ids,
            SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
            root=root,
            block_hashes=tuple(block_hashes(ids, block_size=block_size, root=root)),
        )
