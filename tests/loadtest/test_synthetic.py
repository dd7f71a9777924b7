"""Made-up workloads have the prefixes, turns and fan-out they were asked for."""

import itertools
import random
from collections import Counter

import pytest

from loadtest.config import WorkloadConfig
from loadtest.distribution import fixed, parse_distribution
from loadtest.program import Program, Words
from loadtest.synthetic import SYNTHETIC


def make(count: int, **options: object) -> list[Program]:
    config = WorkloadConfig(**options)  # type: ignore[arg-type]
    programs = SYNTHETIC[config.dataset](config, random.Random(3))
    return list(itertools.islice(programs, count))


def test_random_programs_are_single_calls_of_different_text() -> None:
    programs = make(50, dataset="random", input_tokens=fixed(64), output_tokens=fixed(8))
    calls = [program.steps[0].calls[0] for program in programs]
    assert {(call.prompt_tokens, call.output_tokens) for call in calls} == {(64, 8)}
    assert len({call.parts for call in calls}) == 50


def test_prefixes_come_from_the_pool_and_the_first_is_the_most_popular() -> None:
    programs = make(
        2000, dataset="prefix_repetition", prefix_tokens=100, num_prefixes=4, prefix_skew=1.0
    )
    counts = Counter(program.steps[0].calls[0].parts[0] for program in programs)
    assert all(isinstance(part, Words) and part.num_tokens == 100 for part in counts)
    shares = [count / 2000 for _, count in counts.most_common()]
    harmonic = sum(1 / k for k in range(1, 5))
    assert shares == pytest.approx([1 / k / harmonic for k in range(1, 5)], abs=0.04)


def test_prompt_tokens_count_the_prefix_too() -> None:
    (program,) = make(1, dataset="random", prefix_tokens=100, input_tokens=fixed(20))
    assert program.steps[0].calls[0].prompt_tokens == 120


def test_sessions_think_between_turns_and_share_a_prefix_once() -> None:
    (program,) = make(
        1, dataset="sessions", turns=fixed(3), think_time_s=fixed(2), prefix_tokens=10
    )
    assert [step.pause_s for step in program.steps] == [0, 2, 2]
    assert [len(step.calls[0].parts) for step in program.steps] == [2, 1, 1]


def test_agents_fan_out_within_a_step_and_wait_for_tools_between() -> None:
    programs = make(
        100,
        dataset="agents",
        agent_steps=parse_distribution("uniform:2,6"),
        agent_fanout=fixed(3),
        tool_pause_s=parse_distribution("exponential:0.5"),
    )
    assert {len(step.calls) for program in programs for step in program.steps} == {3}
    pauses = [step.pause_s for program in programs for step in program.steps[1:]]
    assert sum(pauses) / len(pauses) == pytest.approx(0.5, rel=0.2)
    texts = [call.parts for step in programs[0].steps for call in step.calls]
    assert len(set(texts)) == len(texts)


def test_choices_are_asked_of_every_call() -> None:
    (program,) = make(1, dataset="random", num_choices=4)
    assert program.steps[0].calls[0].num_choices == 4
