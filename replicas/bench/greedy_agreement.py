"""How long int8 weights say what the weights as they are would have said, word for word.

Both see the same tokens, those of the exact weights: so the first place where they would choose
differently is where texts of their own would part, and beyond it one can still see how often they
agree.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from replicas.bench.perplexity import next_token_logits
from replicas.config import EngineConfig
from replicas.model_runner import ModelRunner
from replicas.models.prepared_model import PreparedModel

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of one prompt's output: whether each token would have been chosen with int8 weights too."""

    is_same: tuple[bool, ...]

    @property
    def share(self) -> float:
        """Of tokens that are the same, given the same tokens before them."""
        return sum(self.is_same) / len(self.is_same)

    @property
    def share_before_parting(self) -> float:
        """Of tokens before the first one that is not the same."""
        parting = self.is_same.index(False) if False in self.is_same else len(self.is_same)
        return parting / len(self.is_same)


def greedy_agreement(
    model: PreparedModel,
    config: EngineConfig,
    prompts: Sequence[Sequence[int]],
    *,
    num_tokens: int = OUTPUT_TOKENS,
) -> list[Agreement]:
    """Greedy outputs of the exact weights to each prompt, token by token against int8 weights."""
    exact = ModelRunner(model, replace(config, quantization="none"))
    texts = [_continued(exact, prompt, num_tokens) for prompt in prompts]
    exact.close()
    coded = ModelRunner(model, replace(config, quantization="int8"))
    results = []
    for prompt, text in zip(prompts, texts, strict=True):
        chosen = next_token_logits(coded, text, 0, len(text) - 1).argmax(-1).tolist()
        expected, chosen = text[len(prompt) :], chosen[len(prompt) - 1 :]
        pairs = zip(expected, chosen, strict=True)
        results.append(Agreement(tuple(token == own for token, own in pairs)))
    coded.close()
    return results


def agreement_table(results: Sequence[Agreement]) -> str:
    """A Markdown table of all outputs together."""
    shares = [each.share for each in results]
    before = [each.share_before_parting for each in results]
    return "\n".join(
        [
            f"| {len(results)} greedy outputs of {len(results[0].is_same)} tokens "
            "| mean | median | least |",
            "|---" * 4 + "|",
            _row("same next token, same tokens before it", shares),
            _row("tokens before the first other one", before),
        ]
    )


def _row(name: str, shares: Sequence[float]) -> str:
    values = (statistics.mean(shares), statistics.median(shares), min(shares))
    return f"| {name} | " + " | ".join(f"{100 * value:.1f} %" for value in values) + " |"


def _continued(runner: ModelRunner, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The prompt and num_tokens greedy tokens."""
    text = list(prompt)
    start = 0
    for _ in range(num_tokens):
        logits = next_token_logits(runner, text, start, len(text))
        start = len(text)
        text.append(int(logits[-1].argmax()))
    return text
