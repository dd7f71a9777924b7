"""Reads CSV traces that hold arrival times and lengths only: Azure 2023, BurstGPT, plain pairs."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace: arrival in seconds from its first row (None if it has no times)."""

    at_s: float | None
    input_tokens: int
    output_tokens: int
    session: str = ""


def read_azure(path: Path) -> Iterator[TraceRow]:
    """Rows of an Azure LLM inference trace: TIMESTAMP, ContextTokens, GeneratedTokens."""
    start: float | None = None
    for row in _rows(path, "TIMESTAMP", "ContextTokens", "GeneratedTokens"):
        at = _wall_seconds(row["TIMESTAMP"])
        start = at if start is None else start
        yield TraceRow(at - start, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def read_burstgpt(path: Path) -> Iterator[TraceRow]:
    """Rows of a BurstGPT trace (Timestamp in seconds); failed requests, of 0 tokens, are left out.

    Session ID is in some of its files only.
    """
    start: float | None = None
    for row in _rows(path, "Timestamp", "Request tokens", "Response tokens"):
        at = float(row["Timestamp"])
        start = at if start is None else start
        output_tokens = int(float(row["Response tokens"]))
        if output_tokens > 0:
            session = row.get("Session ID") or ""
            yield TraceRow(at - start, int(float(row["Request tokens"])), output_tokens, session)


def read_length_pairs(path: Path) -> Iterator[TraceRow]:
    """Rows of num_prefill_tokens, num_decode_tokens: lengths without arrival times."""
    for row in _rows(path, "num_prefill_tokens", "num_decode_tokens"):
        yield TraceRow(None, int(row["num_prefill_tokens"]), int(row["num_decode_tokens"]))


def _rows(path: Path, *columns: str) -> Iterator[Mapping[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = set(columns) - set(reader.fieldnames or ())
        if missing:
            raise ValueError(f"{path}: no column {sorted(missing)} in {reader.fieldnames}")
        yield from reader


def _wall_seconds(stamp: str) -> float:
    # Seven digits of fraction: one more than datetime reads, so it is added by hand.
    whole, _, fraction = stamp.partition(".")
    moment = datetime.fromisoformat(whole)
    seconds = (moment - datetime(1970, 1, 1)).total_seconds()
    return seconds + (float("0." + fraction) if fraction else 0.0)
