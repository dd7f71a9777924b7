"""Marks say what a test needs; one that nobody bears, or that nobody declared, says nothing."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Waits for the kernels that need one.
NOT_YET = {"gpu"}
BUILT_IN = {"parametrize", "asyncio", "timeout", "filterwarnings", "usefixtures", "skipif"}


def declared():
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    return {line.partition(":")[0] for line in options["markers"]}


def borne():
    texts = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    return {mark for text in texts for mark in re.findall(r"pytest\.mark\.(\w+)", text)} - BUILT_IN


def test_every_declared_mark_is_borne_by_a_test():
    assert declared() - NOT_YET <= borne()


def test_every_mark_that_is_borne_is_declared():
    assert borne() - declared() == set()


@pytest.mark.parametrize("folder", ["e2e"])
def test_every_test_that_needs_the_whole_service_says_so(folder):
    silent = [
        path.name
        for path in (ROOT / "tests" / folder).rglob("test_*.py")
        if f"pytest.mark.{folder}" not in path.read_text()
    ]
    assert silent == []
