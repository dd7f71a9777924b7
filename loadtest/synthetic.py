"""Makes workloads up: random prompts, shared prefixes, conversations, and agents."""

import itertools
import random
from collections.abc import Callable, Iterator

from loadtest.config import WorkloadConfig
from loadtest.program import Call, Program, Step, Words, single

PREFIX_SEEDS = 1 << 60


def random_programs(config: WorkloadConfig, rng: random.Random) -> Iterator[Program]:
    """Single calls of independent text, after a shared prefix of `prefix_tokens` if any."""
    for _ in itertools.count():
        prefix = _prefix(config, rng)
        yield single(_call(config, rng, prefix))


def session_programs(config: WorkloadConfig, rng: random.Random) -> Iterator[Program]:
    """Conversations: each turn sees all before it, after a pause to read and think."""
    for number in itertools.count():
        steps = []
        for turn in range(config.turns.draw_tokens(rng)):
            prefix = () if turn else _prefix(config, rng)
            pause_s = config.think_time_s.draw(rng) if turn else 0.0
            steps.append(Step((_call(config, rng, prefix),), pause_s))
        yield Program(tuple(steps), None, f"session-{number}")


def agent_programs(config: WorkloadConfig, rng: random.Random) -> Iterator[Program]:
    """Agents: steps of one or more parallel calls, each step waiting for a tool in between.

    All calls of a step share the history and differ in their own text (a sub-task, a tool's
    result); the next step sees every answer. After the shape of program-aware serving workloads
    (Autellix).
    """
    for number in itertools.count():
        steps = []
        prefix = _prefix(config, rng)
        for index in range(config.agent_steps.draw_tokens(rng)):
            fanout = config.agent_fanout.draw_tokens(rng)
            calls = tuple(_call(config, rng, prefix if index == 0 else ()) for _ in range(fanout))
            steps.append(Step(calls, config.tool_pause_s.draw(rng) if index else 0.0))
        yield Program(tuple(steps), None, f"agent-{number}")


SYNTHETIC: dict[str, Callable[[WorkloadConfig, random.Random], Iterator[Program]]] = {
    "random": random_programs,
    "prefix_repetition": random_programs,
    "sessions": session_programs,
    "agents": agent_programs,
}


def _call(config: WorkloadConfig, rng: random.Random, prefix: tuple[Words, ...]) -> Call:
    shaping = config.shaping
    own = shaping.made_up(
        rng.getrandbits(48),
        input_tokens=config.input_tokens.draw_tokens(rng),
        output_tokens=config.output_tokens.draw_tokens(rng),
    )
    tokens = (own.prompt_tokens or 0) + sum(words.num_tokens for words in prefix)
    return Call((*prefix, *own.parts), own.output_tokens, tokens, config.num_choices)


def _prefix(config: WorkloadConfig, rng: random.Random) -> tuple[Words, ...]:
    """One of `num_prefixes` shared texts, the k-th as popular as 1 / k ** `prefix_skew`."""
    if config.prefix_tokens == 0:
        return ()
    ranks = range(config.num_prefixes)
    weights = [1.0 / (rank + 1) ** config.prefix_skew for rank in ranks]
    rank = rng.choices(ranks, weights)[0]
    return (Words(PREFIX_SEEDS + rank, config.prefix_tokens),)
