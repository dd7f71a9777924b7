"""Loads a running server with a workload, through the load driver that anybody would use."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cluster.bench.peers.workload_files import FILES, WARM_UP

_RETRY_S = 0.05
_REQUEST_TIMEOUT_S = 30.0
# Figures of a load test's result, by the names that the programs in process give them.
_NAMES = {
    "duration": "seconds",
    "total_output_tokens": "output_tokens",
    "output_throughput": "output_tokens_per_s",
    "p50_ttft_ms": "ttft_p50_ms",
    "p99_ttft_ms": "ttft_p99_ms",
    "p50_tpot_ms": "tpot_p50_ms",
    "p99_tpot_ms": "tpot_p99_ms",
    "driver_cpu_ratio": "driver_cpu_ratio",
}


class LoadFailed(RuntimeError):
    """A load test did not run, or some of its requests failed."""


def wait_for_first_token(url: str, *, check: Callable[[], None]) -> None:
    """Return once a completion of one token came back.

    check: called between attempts; raises if the server has ended or takes too long.
    """
    while True:
        check()
        try:
            model = _call(f"{url}/v1/models")["data"][0]["id"]
            body = {"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
            _call(f"{url}/v1/completions", body)
        except (OSError, ValueError, LookupError):
            # Not listening yet, or listening and not ready.
            time.sleep(_RETRY_S)
        else:
            return


def run_load(
    url: str, workload: str, *, folder: Path, max_requests: int | None, result: Path
) -> dict[str, float]:
    """The figures of one workload. Raises LoadFailed.

    Requests come at the times that the workload states, or else all at once.
    """
    path = folder / (WARM_UP if workload == WARM_UP else FILES[workload])
    rows = [json.loads(line) for line in path.read_text().splitlines()][:max_requests]
    timing = ["--speedup", "1"] if "at_s" in rows[0] else []
    command = [
        *(sys.executable, "-m", "loadtest", "--base-url", url, "--quiet", "--no-calibrate"),
        *("--dataset-name", "custom", "--dataset-path", str(path), "--disable-shuffle"),
        *("--num-prompts", str(len(rows)), "--temperature", "0", "--ignore-eos", *timing),
        *("--save-result", "--result-dir", str(result.parent), "--result-filename", result.name),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise LoadFailed(f"{workload}: {ended.stderr.strip()[-400:]}")
    return figures_of(json.loads(result.read_text()), rows)


def figures_of(result: Mapping[str, Any], rows: list[Mapping[str, Any]]) -> dict[str, float]:
    """A load test's figures under our names. Raises LoadFailed if an answer lacks tokens."""
    wanted = sum(row["output_tokens"] for row in rows)
    found = result["total_output_tokens"]
    if result["completed"] != len(rows) or found != wanted:
        raise LoadFailed(
            f"{result['completed']} of {len(rows)} requests and {found} of {wanted} tokens: "
            f"{result['errors_by_class']}"
        )
    figures = {ours: float(result[theirs]) for theirs, ours in _NAMES.items()}
    figures["prompt_tokens_per_s"] = result["total_input_tokens"] / result["duration"]
    return figures


def _call(url: str, body: Mapping[str, object] | None = None) -> Any:
    request = urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_REQUEST_TIMEOUT_S) as answer:
        return json.loads(answer.read())
