"""What fewer bits for weights or the KV cache cost, on text that every Python carries.

Perplexity is exp of the mean negative log-likelihood of each token after those before it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pydoc_data.topics import topics
from typing import get_args

import numpy as np
import torch
from tokenizers import Tokenizer

from replicas.batch import Batch, SampleSpec
from replicas.config import EngineConfig, KvCacheDtype, Quantization
from replicas.model_runner import ModelRunner
from replicas.models.prepared_model import PreparedModel
from replicas.request import SamplingParams

PASSAGE_TOKENS = 1024
# Positions whose logits are held at once.
_STEP_TOKENS = 128
_GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


@dataclass(frozen=True, slots=True)
class Precision:
    """What an engine keeps weights and K and V as."""

    quantization: Quantization = "none"
    kv_cache_dtype: KvCacheDtype = "auto"


# The first one is what the others are compared with.
CACHES = tuple(Precision(kv_cache_dtype=dtype) for dtype in get_args(KvCacheDtype))
WEIGHTS = (Precision(), Precision("int8"), Precision("int8", "int8"))


@dataclass(frozen=True, slots=True)
class Quality:
    """One precision. loss: mean negative log-likelihood in nats over num_tokens tokens.

    choices: [num_tokens] the likeliest token at each position.
    """

    precision: Precision
    loss: float
    choices: tuple[int, ...]
    block_bytes: int

    @property
    def num_tokens(self) -> int:
        """Tokens that were predicted."""
        return len(self.choices)

    @property
    def perplexity(self) -> float:
        """exp of the loss."""
        return math.exp(self.loss)

    def agreement(self, other: "Quality") -> float:
        """Share of positions at which both choose the same next token."""
        return float(np.mean(np.array(self.choices) == np.array(other.choices)))


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
    precisions: Sequence[Precision],
) -> list[Quality]:
    """The same passages with each precision, by the same back end: `reference`, or config's."""
    kernels = "reference" if config.kernels == "auto" else config.kernels
    results = []
    for precision in precisions:
        settings = replace(
            config,
            kernels=kernels,
            quantization=precision.quantization,
            kv_cache_dtype=precision.kv_cache_dtype,
        )
        runner = ModelRunner(model, settings)
        losses, choices = [], []
        for passage in passages:
            for start in range(0, len(passage) - 1, _STEP_TOKENS):
                end = min(start + _STEP_TOKENS, len(passage) - 1)
                logits = next_token_logits(runner, passage, start, end)
                following = torch.tensor(passage[start + 1 : end + 1], device=logits.device)
                likely = torch.log_softmax(logits, -1).gather(1, following[:, None])
                losses += (-likely[:, 0]).tolist()
                choices += logits.argmax(-1).tolist()
        loss = sum(losses) / len(losses)
        results.append(Quality(precision, loss, tuple(choices), runner.block_bytes))
        runner.close()
    return results


def quality_table(results: Sequence[Quality]) -> str:
    """A Markdown table; changes are against the first row."""
    first = results[0]
    lines = [
        f"| weights | KV cache ({first.num_tokens} tokens) | perplexity | change "
        "| same next token | block KiB | share |",
        "|---" * 7 + "|",
    ]
    lines += [
        f"| {each.precision.quantization} | {each.precision.kv_cache_dtype} "
        f"| {each.perplexity:.4f} | {100 * (each.perplexity / first.perplexity - 1):+.3f} % "
        f"| {100 * each.agreement(first):.2f} % "
        f"| {each.block_bytes / 1024:.1f} | {each.block_bytes / first.block_bytes:.3f} |"
        for each in results
    ]
    return "\n".join(lines)


def next_token_logits(
    runner: ModelRunner, token_ids: Sequence[int], start: int, end: int
) -> torch.Tensor:
    """[end - start, vocab] float32 after each of the tokens start to end of one request.

    Those before them must have been computed already, by the same runner.
    """
    return runner.logits(_each_token_a_row(token_ids, start, end, runner.layout.block_size))


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
