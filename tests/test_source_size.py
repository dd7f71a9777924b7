"""Keeps files and functions small enough to read at one sitting."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
SKIPPED_FOLDERS = {"build", "dist"}


def source_files() -> Iterator[Path]:
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).parts
        hidden = any(part.startswith(".") or part in SKIPPED_FOLDERS for part in parts)
        if not hidden and "_pb2" not in path.name:
            yield path


def test_no_file_is_longer_than_a_sitting():
    lengths = {path: len(path.read_text().splitlines()) for path in source_files()}
    assert lengths, "found no source files"
    assert {p: n for p, n in lengths.items() if n > MAX_FILE_LINES} == {}


def test_no_function_is_longer_than_a_screen():
    too_long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in source_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert too_long == []


def test_every_file_says_first_why_it_exists():
    silent = [
        str(path.relative_to(ROOT))
        for path in source_files()
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []
