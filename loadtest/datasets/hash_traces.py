"""Turns traces of prefix-block ids (Mooncake, Qwen) into prompts that really share prefixes."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from loadtest.datasets.shaping import LengthShaping
from loadtest.program import Call, Program, Words, single

MOONCAKE_BLOCK_TOKENS = 512
QWEN_BLOCK_TOKENS = 16
GRID_TOLERANCE_S = 0.01


@dataclass(frozen=True, slots=True)
class HashRow:
    """One request: its prompt as ids of consecutive blocks, the last of which may be part full."""

    at_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]
    session: str = ""


def read_mooncake(path: Path) -> Iterator[HashRow]:
    """Rows of {timestamp (ms), input_length, output_length, hash_ids}."""
    for row in _json_lines(path):
        at_s = float(row["timestamp"]) / 1000.0
        yield _hash_row(row, at_s, session="")


def read_qwen(path: Path) -> Iterator[HashRow]:
    """Rows of {chat_id, parent_chat_id, timestamp (s), input_length, output_length, hash_ids}.

    A turn belongs to the session of the root that its parents lead to.
    """
    roots: dict[Any, str] = {}
    start: float | None = None
    for row in _json_lines(path):
        at = float(row["timestamp"])
        start = at if start is None else start
        parent = row.get("parent_chat_id", -1)
        root = roots.get(parent, str(row["chat_id"]))
        roots[row["chat_id"]] = root
        yield _hash_row(row, at - start, session=root)


def spread_over_grid(rows: Sequence[HashRow], grid_s: float) -> list[HashRow]:
    """Spread rows that share a time stamp evenly over the grid's step that follows it.

    Mooncake's conversation trace stamps up to 28 requests with the same multiple of 3 s; sent as
    they stand they would be a burst every 3 s that its users never made.
    """
    counts = Counter(row.at_s for row in rows)
    seen: Counter[float] = Counter()
    spread = []
    for row in rows:
        at_s = row.at_s + grid_s * seen[row.at_s] / counts[row.at_s]
        seen[row.at_s] += 1
        spread.append(HashRow(at_s, row.input_tokens, row.output_tokens, row.hash_ids, row.session))
    return sorted(spread, key=lambda row: row.at_s)


def grid_step_s(rows: Sequence[HashRow]) -> float:
    """The step of the grid on which the time stamps lie, or 0 where they lie on none.

    A grid is taken for one when its steps are at least a second, stamps repeat often, and all lie
    within a hundredth of a second of it (Mooncake's are up to 2 ms off).
    """
    stamps = sorted({row.at_s for row in rows})
    if len(stamps) < 2 or len(rows) < 2 * len(stamps):
        return 0.0
    step = statistics.median(b - a for a, b in zip(stamps, stamps[1:], strict=False))
    is_grid = all(abs(at - step * round(at / step)) < GRID_TOLERANCE_S for at in stamps)
    return step if is_grid and step >= 1.0 else 0.0


def hash_programs(
    rows: Sequence[HashRow], *, block_tokens: int, shaping: LengthShaping, seed: int
) -> Iterator[Program]:
    """One call per row whose text is the blocks' texts in order.

    Lengths are scaled block by block, so equal leading ids stay equal leading text and a cap
    cuts the end, never the shared beginning.
    """
    for row in rows:
        output = shaping.output_tokens(row.output_tokens)
        length = shaping.input_tokens(row.input_tokens, output_tokens=output)
        scaled_block = block_tokens * shaping.input_scale
        parts = []
        for index, hash_id in enumerate(row.hash_ids):
            # Borders are rounded, not lengths: rounding must not add up over a long prompt.
            begin = round(index * scaled_block)
            end = min(round((index + 1) * scaled_block), length)
            if end > begin:
                parts.append(Words((seed << 32) + hash_id, end - begin))
        if not parts:
            parts.append(Words((seed << 32) + row.hash_ids[0], length))
        yield single(Call(tuple(parts), output, length), at_s=row.at_s, session=row.session)


def _hash_row(row: dict[str, Any], at_s: float, *, session: str) -> HashRow:
    ids = tuple(int(value) for value in row["hash_ids"])
    return HashRow(at_s, int(row["input_length"]), int(row["output_length"]), ids, session)


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise ValueError(f"{path}:{number}: not JSON ({error})") from error
