"""Leaves prompts uncomputed, so that long contexts can be timed without waiting for them.

What a decode step costs depends on how many tokens lie before it and on where they lie, not on what
they are. So the engine admits, allocates and schedules prompts as ever, and the runner below it
passes over the steps that would compute them.
"""

from collections.abc import Callable

import numpy as np

from replicas.batch import Batch, Sampled
from replicas.runner import NearlyDone, Runner

_TOKEN_ID = 1


class PromptSkippingRunner:
    """Hands steps of one token a row to `runner` (implements replicas.runner.Runner).

    Any other step takes no time and samples the same token for every row.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.close: Callable[[], None] = runner.close

    def run(self, batch: Batch, nearly_done: NearlyDone) -> Sampled:
        """Compute the batch if it is one of decode rows alone."""
        if batch.num_tokens == batch.num_rows:
            return self._runner.run(batch, nearly_done)
        nearly_done()
        return Sampled(np.full(len(batch.samples), _TOKEN_ID, dtype=np.int64))
