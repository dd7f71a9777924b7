"""Import tests of DESIGN 1, each in a fresh interpreter."""

import subprocess
import sys

import pytest

TORCH_FREE = ["kvstore", "router", "cluster.config", "cluster.dispatch", "cluster.cli"]


def run_fresh(code: str) -> str:
    """Standard output of `code` in an interpreter that has imported nothing yet."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.mark.parametrize("package", TORCH_FREE)
def test_torch_stays_out(package):
    code = f"""
import importlib, sys
importlib.import_module({package!r})
print(sorted({{"torch", "transformers", "ray", "redis"}} & set(sys.modules)))
"""
    assert run_fresh(code) == "[]"
