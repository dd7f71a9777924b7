"""Sets of real text become calls and conversations with the lengths they name."""

from pathlib import Path

import pytest

from loadtest.datasets import LengthShaping, open_dataset
from loadtest.datasets.registry import find_file

DATA = Path(__file__).parent / "data"


def test_sharegpt_gives_first_questions_with_the_answers_length() -> None:
    programs = open_dataset("sharegpt", DATA / "sharegpt.json", LengthShaping(), seed=0)
    calls = [program.steps[0].calls[0] for program in programs]
    assert [call.parts for call in calls] == [("Name a river.",), ("Add two and two.",)]
    assert calls[0].output_tokens == 8
    assert [len(program.steps) for program in programs] == [1, 1]


def test_sharegpt_conversations_keep_all_their_questions() -> None:
    programs = open_dataset("sharegpt-multi-turn", DATA / "sharegpt.json", LengthShaping(), seed=0)
    assert [len(program.steps) for program in programs] == [2, 1]
    assert programs[0].steps[1].calls[0].parts == ("And a lake?",)


def test_mt_bench_turns_are_the_steps_of_a_session() -> None:
    shaping = LengthShaping(fixed_output_tokens=32)
    programs = open_dataset("mt-bench", DATA / "mt_bench.jsonl", shaping, seed=0)
    assert [len(program.steps) for program in programs] == [2, 1]
    assert programs[0].steps[0].calls[0].output_tokens == 32


def test_our_own_lines_keep_their_times_and_exact_lengths() -> None:
    programs = open_dataset("custom", DATA / "workload.jsonl", LengthShaping(), seed=0)
    assert [program.at_s for program in programs] == [0.25, 0.75]
    calls = [program.steps[0].calls[0] for program in programs]
    assert [(call.prompt_tokens, call.output_tokens) for call in calls] == [(3, 5), (2, 9)]


def test_text_beyond_the_context_is_left_out() -> None:
    shaping = LengthShaping(max_total_tokens=10)
    programs = open_dataset("custom", DATA / "workload.jsonl", shaping, seed=0)
    assert [program.at_s for program in programs] == [0.25]


def test_a_line_without_a_prompt_names_its_place(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "x"}\n{"answer": "y"}\n')
    with pytest.raises(ValueError, match="bad.jsonl:2"):
        open_dataset("custom", path, LengthShaping(), seed=0)


def test_a_missing_file_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="AzureLLMInferenceTrace_conv"):
        find_file("azure-conv", None, [tmp_path])


@pytest.mark.parametrize(
    ("name", "file", "count"),
    [
        ("mt-bench", "prompts/mt_bench_question.jsonl", 80),
        ("custom", "prompts/gsm8k_test.jsonl", 1_319),
        ("custom", "prompts/HumanEval.jsonl.gz", 164),
        ("custom", "prompts/vicuna_bench_question.jsonl", 80),
        ("custom", "workloads/w6-online.jsonl", 60),
        ("custom", "workloads/w5-shared-prefix.jsonl", 32),
    ],
)
def test_the_real_sets_are_read_whole(shared_dir: Path, name: str, file: str, count: int) -> None:
    assert len(open_dataset(name, shared_dir / file, LengthShaping(), seed=0)) == count


def test_the_online_workload_has_increasing_times(shared_dir: Path) -> None:
    path = shared_dir / "workloads" / "w6-online.jsonl"
    programs = open_dataset("custom", path, LengthShaping(), seed=0)
    times = [program.at_s for program in programs if program.at_s is not None]
    assert len(times) == 60
    assert times == sorted(times)
