"""Measures what guessing tokens gains where text repeats, and what it costs where it does not.

Two engines over one runner take turns, one of which guesses. The texts are what every Python
carries: a module's source, of which an edited copy is asked for; the language reference, which is
to be quoted; and random words of it, with sampled outputs, where there is nothing to find.
"""

import random
import statistics
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from pydoc_data.topics import topics

from tokenizers import Tokenizer

from kvstore.block_hash import root_hash
from replicas.bench.measure import Run, run_requests
from replicas.bench.workload import WorkloadRequest
from replicas.config import EngineConfig, SchedulerConfig
from replicas.engine import Engine
from replicas.model_runner import ModelRunner
from replicas.models.prepared_model import PreparedModel
from replicas.request import EngineRequest
from replicas.speculation.config import SpeculationConfig

NUM_ROUNDS = 3
NUM_RUNNING = (1, 8, 32)
OUTPUT_TOKENS = 128
_PASSAGE_CHARACTERS = 1500
_ARMS = ("off", "ngram")


@dataclass(frozen=True, slots=True)
class SampledRequest(WorkloadRequest):
    """Sampled instead of greedy, so that a small model does not fall into a loop."""

    def to_engine(self, request_id: str, root: bytes, max_tokens: int = 0) -> EngineRequest:
        """The request for an engine."""
        greedy = WorkloadRequest.to_engine(self, request_id, root, max_tokens)
        return replace(greedy, sampling=replace(greedy.sampling, temperature=1.0, seed=7))


def speculation_table(model: PreparedModel, config: EngineConfig) -> str:
    """A Markdown table of medians over NUM_ROUNDS rounds."""
    thread = ThreadPoolExecutor(1, "runner")
    runner = thread.submit(lambda: ModelRunner(model, config)).result()
    thread.submit(runner.warm_up).result()
    engines = {
        name: Engine(_scheduler(config, runner, name), runner, clock=time.monotonic, thread=thread)
        for name in _ARMS
    }
    root = root_hash(fingerprint=model.fingerprint, block_size=config.scheduler.block_size)
    lines = [
        "| text | running | TPOT ms off | guessing | ratio | range | right guesses | "
        "tokens a row and step |",
        "|---" * 8 + "|",
    ]
    for name, requests in _texts(model).items():
        for count in NUM_RUNNING:
            lines.append(f"| {name} | {count} | {compare(engines, requests[:count], root)} |")
    for engine in engines.values():
        engine.check()
    engines["off"].close()
    return "\n".join(lines)


def compare(engines: dict[str, Engine], requests: list[WorkloadRequest], root: bytes) -> str:
    """The cells of one row: both engines in turn; the one named `ngram` guesses."""
    tpots: dict[str, list[float]] = {name: [] for name in engines}
    before = engines["ngram"].stats.speculation
    last: dict[str, Run] = {}
    for _ in range(NUM_ROUNDS):
        for name, engine in engines.items():
            last[name] = run_requests(engine, requests, root, max_tokens=OUTPUT_TOKENS)
            tpots[name].append(statistics.mean(last[name].tpots_s()))
    after = engines["ngram"].stats.speculation
    num_guesses = after.num_draft_tokens_total - before.num_draft_tokens_total
    num_right = after.num_accepted_tokens_total - before.num_accepted_tokens_total
    ratios = [on / off for off, on in zip(tpots["off"], tpots["ngram"], strict=True)]
    num_rows = sum(step.num_rows for step in last["ngram"].steps)
    cells = [f"{1e3 * statistics.median(tpots[name]):.2f}" for name in _ARMS]
    cells.append(f"{statistics.median(ratios):.2f}")
    cells.append(f"{min(ratios):.2f} to {max(ratios):.2f}")
    cells.append(f"{num_right / num_guesses:.0%}" if num_guesses else "none made")
    cells.append(f"{last['ngram'].num_output_tokens / num_rows:.2f}")
    return " | ".join(cells)


def _scheduler(config: EngineConfig, runner: ModelRunner, name: str) -> SchedulerConfig:
    speculation = config.scheduler.speculation
    if name == "off":
        speculation = SpeculationConfig(speculative_method="off")
    elif speculation.speculative_method != "ngram":
        speculation = SpeculationConfig(speculative_method="ngram")
    return replace(
        config.scheduler,
        num_blocks=runner.num_blocks,
        max_model_len=runner.max_model_len,
        max_prefill_tokens=config.scheduler.max_prefill_tokens or runner.saturating_tokens,
        speculation=speculation,
    )


def _texts(model: PreparedModel) -> dict[str, list[WorkloadRequest]]:
    tokenizer = Tokenizer.from_file(f"{model.folder}/tokenizer.json")

    def encoded(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False).ids)

    most = max(NUM_RUNNING)
    code = [WorkloadRequest(encoded(text), OUTPUT_TOKENS) for text in edits(most)]
    prose = [WorkloadRequest(encoded(text), OUTPUT_TOKENS) for text in quotes(most)]
    words: list[WorkloadRequest] = [
        SampledRequest(encoded(text), OUTPUT_TOKENS) for text in _random_words(most)
    ]
    greedy = [WorkloadRequest(each.prompt_token_ids, OUTPUT_TOKENS) for each in words]
    return {
        "code to edit": code,
        "text to quote": prose,
        "random words, greedy": greedy,
        "random words, sampled": words,
    }


def edits(count: int) -> Iterator[str]:
    """A piece of a module, and the beginning of an edited copy."""
    source = Path(textwrap.__file__).read_text()
    start = source.index("class ")
    for index in range(count):
        first = start + index * 137
        code = source[first : first + _PASSAGE_CHARACTERS]
        code = code[code.index("\n") + 1 :]
        yield (
            f"```python\n{code}\n```\n\nThe same code, with the name `text` changed to "
            f"`content`:\n\n```python\n{code[:80]}"
        )


def quotes(count: int) -> Iterator[str]:
    """A passage, and the beginning of a quotation of it."""
    long = [text for text in topics.values() if len(text) > _PASSAGE_CHARACTERS]
    for text in long[:count]:
        passage = " ".join(text[:_PASSAGE_CHARACTERS].split())
        yield f"{passage}\n\nThe passage says, word for word:\n\n{passage[:80]}"


def _random_words(count: int) -> Iterator[str]:
    words = sorted({word for text in topics.values() for word in text.split() if word.isalpha()})
    for index in range(count):
        yield " ".join(random.Random(index).choices(words, k=100))
