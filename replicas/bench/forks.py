"""Measures what forking saves: eight choices of one prompt beside eight requests with it.

Three arms take turns on one engine: one request with n=8; eight requests that share the prompt's
blocks through the prefix cache; eight requests that share nothing. Every arm of every round has
block names of its own, so nothing is left over from the one before.
"""

import hashlib
import random
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass

from replicas.assembly import build_engine
from replicas.config import EngineConfig
from replicas.engine import Engine
from replicas.engine_commands import Submit
from replicas.models.prepared_model import PreparedModel
from replicas.request import EngineRequest, SamplingParams

NUM_CHOICES = 8
PROMPT_TOKENS = 1024
OUTPUT_TOKENS = 64
NUM_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class ForkFigures:
    """One arm in one round. held_blocks: the most that were held at once.

    cpu_s: of all threads of this process, which other work on the machine disturbs less.
    """

    wall_s: float
    cpu_s: float
    held_blocks: int
    prompt_tokens: int
    copied_blocks: int


def forks_table(model: PreparedModel, config: EngineConfig) -> str:
    """A Markdown table of medians over NUM_ROUNDS rounds, ratios to the first arm."""
    engine, info = build_engine(config)
    rng = random.Random(0)
    prompt = tuple(rng.randrange(model.vocab_size) for _ in range(PROMPT_TOKENS))
    figures: dict[str, list[ForkFigures]] = {}
    for number in range(NUM_ROUNDS):
        for name, requests in arms(prompt, f"{number}").items():
            figures.setdefault(name, []).append(measure(engine, requests))
    engine.close()
    prompt_blocks = -(-PROMPT_TOKENS // info.block_size)
    output_blocks = -(-OUTPUT_TOKENS // info.block_size)
    bound = prompt_blocks + NUM_CHOICES * output_blocks + NUM_CHOICES
    return "\n".join(
        [
            f"{NUM_CHOICES} outputs of {OUTPUT_TOKENS} tokens off one prompt of {PROMPT_TOKENS} "
            f"(a prompt, {NUM_CHOICES} outputs and {NUM_CHOICES} blocks: {bound})",
            "",
            "| arm | seconds | ratio | CPU seconds | blocks held | prompt tokens computed "
            "| blocks copied |",
            "|---|---|---|---|---|---|---|",
            *_rows(figures),
        ]
    )


def arms(prompt: tuple[int, ...], label: str) -> dict[str, list[EngineRequest]]:
    """The requests of each arm, by its name; label: different for every round."""

    def request(name: str, root: str, *, num_choices: int = 1, seed: int = 0) -> EngineRequest:
        sampling = SamplingParams(
            max_tokens=OUTPUT_TOKENS, temperature=1.0, seed=seed, ignore_eos=True
        )
        root_name = hashlib.sha256(f"{label}/{root}".encode()).digest()
        return EngineRequest(f"{label}/{name}", prompt, sampling, root_name, (), num_choices)

    each = range(NUM_CHOICES)
    return {
        f"n={NUM_CHOICES}": [request("n", "n", num_choices=NUM_CHOICES)],
        "prefix cache": [request(f"shared{i}", "shared", seed=i) for i in each],
        "no sharing": [request(f"own{i}", f"own{i}", seed=i) for i in each],
    }


def measure(engine: Engine, requests: Iterable[EngineRequest]) -> ForkFigures:
    """Run an idle engine until it is idle again."""
    before = engine.stats
    started, cpu_before = time.perf_counter(), time.process_time()
    for request in requests:
        engine.inbox.put(Submit(request))
    held_blocks = 0
    while (output := engine.step()) is not None or engine.has_work:
        if output is not None:
            held = output.stats.num_blocks - output.stats.num_free_blocks
            held_blocks = max(held_blocks, held)
    return ForkFigures(
        wall_s=time.perf_counter() - started,
        cpu_s=time.process_time() - cpu_before,
        held_blocks=held_blocks,
        prompt_tokens=engine.stats.computed_prompt_tokens_total
        - before.computed_prompt_tokens_total,
        copied_blocks=engine.stats.copied_blocks_total - before.copied_blocks_total,
    )


def _rows(figures: dict[str, list[ForkFigures]]) -> Iterable[str]:
    medians = {
        name: statistics.median(one.wall_s for one in each) for name, each in figures.items()
    }
    base = next(iter(medians.values()))
    for name, each in figures.items():
        held = max(one.held_blocks for one in each)
        cpu_s = statistics.median(one.cpu_s for one in each)
        yield (
            f"| {name} | {medians[name]:.2f} | {medians[name] / base:.2f} | {cpu_s:.2f} | {held} | "
            f"{each[0].prompt_tokens} | {each[0].copied_blocks} |"
        )
