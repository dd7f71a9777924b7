"""The benchmark measures what it says, at a size that a test can afford."""

import json
from typing import get_args

import pytest

from router import bench
from router.config import PolicyName


def test_every_policy_and_the_index_are_measured(capsys: pytest.CaptureFixture[str]):
    assert bench.main(["--replicas", "4", "--blocks", "6400", "--decisions", "40"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[1]["num_blocks"] == 6400
    assert lines[1]["bytes_per_block"] < 200
    assert [line["policy"] for line in lines[2:]] == list(get_args(PolicyName))
    assert all(0 < line["p50_us"] <= line["p99_us"] <= line["longest_us"] for line in lines[2:])
