"""What a KV cache of fewer bits costs: the perplexity of text that every Python carries.

Perplexity is exp of the mean negative log-likelihood of each token after those before it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pydoc_data.topics import topics

import numpy as np
import torch
from tokenizers import Tokenizer

from replicas.batch import Batch, SampleSpec
from replicas.config import EngineConfig, KvCacheDtype
from replicas.model_runner import ModelRunner
from replicas.models.prepared_model import PreparedModel
from replicas.request import SamplingParams

KV_CACHE_DTYPES: tuple[KvCacheDtype, ...] = ("auto", "bf16", "int8", "fp8")
PASSAGE_TOKENS = 1024
# Positions whose logits are held at once.
_STEP_TOKENS = 128
_GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


@dataclass(frozen=True, slots=True)
class CacheQuality:
    """One type of KV cache. loss: mean negative log-likelihood in nats over num_tokens tokens."""

    kv_cache_dtype: KvCacheDtype
    loss: float
    num_tokens: int
    block_bytes: int

    @property
    def perplexity(self) -> float:
        """exp of the loss."""
        return math.exp(self.loss)


def python_manual(model: PreparedModel, num_passages: int) -> list[list[int]]:
    """Passages of PASSAGE_TOKENS tokens from the language reference that `help()` prints."""
    tokenizer = Tokenizer.from_file(f"{model.folder}/tokenizer.json")
    passages: list[list[int]] = []
    for name in sorted(topics):
        token_ids = tokenizer.encode(topics[name], add_special_tokens=False).ids
        if len(token_ids) >= PASSAGE_TOKENS:
            passages.append(token_ids[:PASSAGE_TOKENS])
        if len(passages) == num_passages:
            break
    return passages


def measure_quality(
    model: PreparedModel,
    config: EngineConfig,
    passages: Sequence[Sequence[int]],
    kv_cache_dtypes: Sequence[KvCacheDtype] = KV_CACHE_DTYPES,
) -> list[CacheQuality]:
    """The same passages over each type of cache, with the same back end.

    That is `reference` unless config names another: it alone has every type.
    """
    kernels = "reference" if config.kernels == "auto" else config.kernels
    results = []
    for kv_cache_dtype in kv_cache_dtypes:
        runner = ModelRunner(model, replace(config, kernels=kernels, kv_cache_dtype=kv_cache_dtype))
        losses = [loss for passage in passages for loss in _losses(runner, passage)]
        loss = sum(losses) / len(losses)
        results.append(CacheQuality(kv_cache_dtype, loss, len(losses), runner.block_bytes))
        runner.close()
    return results


def quality_table(results: Sequence[CacheQuality]) -> str:
    """A Markdown table; changes are against the first row."""
    first = results[0]
    lines = [
        f"| KV cache ({first.num_tokens} tokens) | perplexity | change | block KiB | share |",
        "|---" * 5 + "|",
    ]
    lines += [
        f"| {each.kv_cache_dtype} | {each.perplexity:.4f} "
        f"| {100 * (each.perplexity / first.perplexity - 1):+.3f} % "
        f"| {each.block_bytes / 1024:.1f} | {each.block_bytes / first.block_bytes:.3f} |"
        for each in results
    ]
    return "\n".join(lines)


def _losses(runner: ModelRunner, token_ids: Sequence[int]) -> list[float]:
    """Of every token but the first, in nats."""
    losses: list[float] = []
    for start in range(0, len(token_ids) - 1, _STEP_TOKENS):
        end = min(start + _STEP_TOKENS, len(token_ids) - 1)
        logits = runner.logits(_each_token_a_row(token_ids, start, end, runner.layout.block_size))
        following = torch.tensor(token_ids[start + 1 : end + 1], device=logits.device)
        likely = torch.log_softmax(logits, -1).gather(1, following[:, None])
        losses += (-likely[:, 0]).tolist()
    return losses


def _each_token_a_row(token_ids: Sequence[int], start: int, end: int, block_size: int) -> Batch:
    """Tokens start to end of one passage, each a row of its own over the same blocks.

    A layer writes the K and V of a whole step before it attends, so each row sees those before it;
    and each samples, which only the last token of an ordinary row would.
    """
    positions = np.arange(start, end, dtype=np.int64)
    num_rows = end - start
    blocks = np.arange(-(-end // block_size), dtype=np.int32)
    return Batch(
        step=0,
        token_ids=np.array(token_ids[start:end], dtype=np.int64),
        positions=positions,
        slot_mapping=positions,
        query_start=np.arange(num_rows + 1, dtype=np.int32),
        context_lens=(positions + 1).astype(np.int32),
        block_tables=np.tile(blocks, (num_rows, 1)),
        slots=np.zeros(num_rows, dtype=np.int32),
        samples=tuple(
            SampleSpec(row, _GREEDY, 0, int(positions[row]) + 1) for row in range(num_rows)
        ),
    )
