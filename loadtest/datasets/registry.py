"""Finds a dataset by the name and path given on the command line and opens it as programs."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from loadtest.datasets.conversations import read_json_lines, read_sharegpt
from loadtest.datasets.hash_traces import (
    MOONCAKE_BLOCK_TOKENS,
    QWEN_BLOCK_TOKENS,
    HashRow,
    grid_step_s,
    hash_programs,
    read_mooncake,
    read_qwen,
    spread_over_grid,
)
from loadtest.datasets.length_traces import (
    TraceRow,
    read_azure,
    read_burstgpt,
    read_length_pairs,
)
from loadtest.datasets.shaping import LengthShaping
from loadtest.program import Program, Step, single

LengthReader = Callable[[Path], Iterator[TraceRow]]
HashReader = Callable[[Path], Iterator[HashRow]]

LENGTH_READERS: dict[str, LengthReader] = {
    "azure-conv": read_azure,
    "azure-code": read_azure,
    "azure": read_azure,
    "burstgpt": read_burstgpt,
    "lengths": read_length_pairs,
}
HASH_READERS: dict[str, tuple[HashReader, int]] = {
    "mooncake": (read_mooncake, MOONCAKE_BLOCK_TOKENS),
    "mooncake-conversation": (read_mooncake, MOONCAKE_BLOCK_TOKENS),
    "mooncake-synthetic": (read_mooncake, MOONCAKE_BLOCK_TOKENS),
    "qwen": (read_qwen, QWEN_BLOCK_TOKENS),
}
TEXT_NAMES = ("sharegpt", "sharegpt-multi-turn", "custom", "mt-bench")
DATASET_NAMES = (*LENGTH_READERS, *HASH_READERS, *TEXT_NAMES)

WELL_KNOWN_FILES = {
    "azure-conv": "traces/AzureLLMInferenceTrace_conv.csv",
    "azure-code": "traces/AzureLLMInferenceTrace_code.csv",
    "mooncake-conversation": "traces/mooncake_conversation_trace.jsonl",
    "mooncake-synthetic": "traces/mooncake_synthetic_trace.jsonl",
    "mt-bench": "prompts/mt_bench_question.jsonl",
}


def find_file(name: str, path: Path | None, folders: Sequence[Path]) -> Path:
    """The file to read: `path`, or the dataset's well-known file in one of `folders`.

    Raises FileNotFoundError that says where it was looked for.
    """
    known = WELL_KNOWN_FILES.get(name)
    places = [path] if path is not None else [folder / known for folder in folders if known]
    for place in places:
        if place.is_file():
            return place
    if not places:
        raise FileNotFoundError(f"dataset {name}: give its file with --dataset-path")
    looked = ", ".join(str(place) for place in places)
    raise FileNotFoundError(f"dataset {name}: no such file: {looked}")


def open_dataset(name: str, path: Path, shaping: LengthShaping, *, seed: int) -> list[Program]:
    """All programs of a dataset in order of arrival. Raises ValueError for an unknown name."""
    if name in LENGTH_READERS:
        return list(_length_programs(LENGTH_READERS[name](path), shaping, seed))
    if name in HASH_READERS:
        reader, block_tokens = HASH_READERS[name]
        rows = list(reader(path))
        grid_s = grid_step_s(rows)
        if grid_s:
            rows = spread_over_grid(rows, grid_s)
        return list(hash_programs(rows, block_tokens=block_tokens, shaping=shaping, seed=seed))
    if name in TEXT_NAMES:
        programs = (
            read_sharegpt(path, multi_turn=name.endswith("multi-turn"))
            if name.startswith("sharegpt")
            else read_json_lines(path)
        )
        return list(_shaped_text(programs, shaping))
    raise ValueError(f"unknown dataset {name!r}: expected one of {', '.join(DATASET_NAMES)}")


def _length_programs(
    rows: Iterator[TraceRow], shaping: LengthShaping, seed: int
) -> Iterator[Program]:
    for index, row in enumerate(rows):
        call = shaping.made_up(
            (seed << 32) + index,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
        )
        yield single(call, at_s=row.at_s, session=row.session)


def _shaped_text(programs: Iterator[Program], shaping: LengthShaping) -> Iterator[Program]:
    for program in programs:
        if all(shaping.fits(call) for step in program.steps for call in step.calls):
            steps = tuple(
                Step(tuple(shaping.reshaped(call) for call in step.calls), step.pause_s)
                for step in program.steps
            )
            yield Program(steps, program.at_s, program.session)
