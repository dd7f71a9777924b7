"""Prefix ids of a trace become prompts that share exactly the text their ids share."""

from pathlib import Path

import pytest

from loadtest.datasets import LengthShaping, open_dataset
from loadtest.datasets.hash_traces import (
    grid_step_s,
    hash_programs,
    read_mooncake,
    read_qwen,
    spread_over_grid,
)
from loadtest.program import Program
from loadtest.prompt_writer import COMMON_WORDS, PromptWriter, TokenScale

DATA = Path(__file__).parent / "data"


def words_of(program: Program) -> list[str]:
    writer = PromptWriter(COMMON_WORDS, TokenScale())
    return writer.write(program.steps[0].calls[0].parts).split()


def shared_length(a: list[str], b: list[str]) -> int:
    same = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        same += 1
    return same


def programs_of(**shaping: float) -> list[Program]:
    rows = list(read_mooncake(DATA / "mooncake.jsonl"))
    shape = LengthShaping(**shaping)  # type: ignore[arg-type]
    return list(hash_programs(rows, block_tokens=512, shaping=shape, seed=1))


def test_prompts_have_the_traces_lengths() -> None:
    assert [len(words_of(program)) for program in programs_of()] == [1200, 1536, 700, 512, 512, 512]


def test_equal_leading_ids_are_equal_leading_text_and_no_more() -> None:
    first, second, third, other, *_ = (words_of(program) for program in programs_of())
    assert 1024 <= shared_length(first, second) < 1030
    assert 512 <= shared_length(first, third) < 518
    assert shared_length(first, other) < 6


def test_scaled_prompts_keep_their_shared_share() -> None:
    first, second, *_ = (words_of(program) for program in programs_of(input_scale=1 / 16))
    assert (len(first), len(second)) == (75, 96)
    assert 64 <= shared_length(first, second) < 68


@pytest.mark.parametrize("scale", [0.001, 0.0173, 0.37])
def test_any_scale_gives_the_scaled_lengths(scale: float) -> None:
    lengths = [len(words_of(program)) for program in programs_of(input_scale=scale)]
    expected = [max(1, round(n * scale)) for n in (1200, 1536, 700, 512, 512, 512)]
    assert lengths == pytest.approx(expected, abs=1)


def test_a_cap_cuts_the_end_and_keeps_the_shared_beginning() -> None:
    first, second, *_ = (words_of(program) for program in programs_of(max_input_tokens=1030))
    assert len(first) == len(second) == 1030
    assert shared_length(first, second) >= 1024


def test_requests_on_one_stamp_are_spread_over_the_grids_step() -> None:
    rows = list(read_mooncake(DATA / "mooncake.jsonl"))
    assert grid_step_s(rows) == 3.0
    spread = spread_over_grid(rows, 3.0)
    assert [row.at_s for row in spread] == [0.0, 1.5, 3.0, 4.0, 5.0, 6.0]


def test_qwen_turns_belong_to_their_root_session() -> None:
    rows = list(read_qwen(DATA / "qwen.jsonl"))
    assert {row.session for row in rows} == {"7"}
    assert [row.at_s for row in rows] == [0.0, 0.5, 3.5]
    programs = open_dataset("qwen", DATA / "qwen.jsonl", LengthShaping(), seed=0)
    assert shared_length(words_of(programs[1]), words_of(programs[2])) >= 60


def test_the_real_conversation_trace_lies_on_a_grid_and_shares_its_first_block(
    shared_dir: Path,
) -> None:
    rows = list(read_mooncake(shared_dir / "traces" / "mooncake_conversation_trace.jsonl"))
    assert len(rows) == 12_031
    assert grid_step_s(rows) == 3.0
    times = [row.at_s for row in spread_over_grid(rows, 3.0)]
    assert times == sorted(times)
    assert max(sum(at <= t < at + 0.1 for t in times) for at in times[:200]) <= 2
    blocks = [block for row in rows for block in row.hash_ids]
    assert 1 - len(set(blocks)) / len(blocks) == pytest.approx(0.366, abs=0.001)


def test_the_real_synthetic_trace_has_its_own_times(shared_dir: Path) -> None:
    rows = list(read_mooncake(shared_dir / "traces" / "mooncake_synthetic_trace.jsonl"))
    assert (len(rows), grid_step_s(rows)) == (3_993, 0.0)
