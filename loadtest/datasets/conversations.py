"""Reads sets of real text: ShareGPT, MT-bench, question sets, and JSON lines of our own."""

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from loadtest.program import Call, Program, Step, single

PROMPT_FIELDS = ("prompt", "question", "instruction", "text")


def read_json_lines(path: Path) -> Iterator[Program]:
    """One program per line: `prompt` (or question) or `turns`; optional `output_tokens`,
    `prompt_tokens`, `at_s` (arrival in seconds) and `session`. The form of vLLM's custom
    dataset, of our workloads, GSM8K, HumanEval and MT-bench; .gz is unpacked.
    """
    for number, line in enumerate(_lines(path), 1):
        row = orjson.loads(line)
        if "turns" in row:
            yield _turns_program(row)
            continue
        prompt = next((row[name] for name in PROMPT_FIELDS if name in row), None)
        if prompt is None:
            raise ValueError(f"{path}:{number}: no field of {PROMPT_FIELDS} and no turns")
        call = Call((str(prompt),), row.get("output_tokens"), row.get("prompt_tokens"))
        yield single(call, at_s=row.get("at_s"), session=str(row.get("session", "")))


def read_sharegpt(path: Path, *, multi_turn: bool) -> Iterator[Program]:
    """ShareGPT-like JSON: [{id, conversations: [{from, value}]}].

    As vLLM does, a conversation gives its first question with the length of its first answer
    (estimated); with `multi_turn`, all its questions as the steps of one session.
    """
    for entry in orjson.loads(path.read_bytes()):
        pairs = _question_answer_pairs(entry.get("conversations") or entry.get("items") or [])
        if not pairs:
            continue
        calls = [
            Call((question,), estimate_tokens(answer), estimate_tokens(question))
            for question, answer in (pairs if multi_turn else pairs[:1])
        ]
        yield Program(tuple(Step((call,)) for call in calls), None, str(entry.get("id", "")))


def estimate_tokens(text: str) -> int:
    """A guess at a text's tokens without its tokenizer: four characters each, as is usual."""
    return max(1, round(len(text) / 4))


def _turns_program(row: dict[str, Any]) -> Program:
    output = row.get("output_tokens")
    pause_s = float(row.get("think_time_s", 0.0))
    steps = tuple(
        Step((Call((str(turn),), output, estimate_tokens(str(turn))),), pause_s if index else 0.0)
        for index, turn in enumerate(row["turns"])
    )
    return Program(steps, row.get("at_s"), str(row.get("question_id", "")))


def _question_answer_pairs(turns: Sequence[dict[str, str]]) -> list[tuple[str, str]]:
    pairs = []
    for question, answer in zip(turns, turns[1:], strict=False):
        if question.get("from") in ("human", "user") and answer.get("from") in ("gpt", "assistant"):
            pairs.append((question["value"], answer["value"]))
    return [(question, answer) for question, answer in pairs if question and answer]


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as raw:
        file = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
        for line in file:
            if line.strip():
                yield line
