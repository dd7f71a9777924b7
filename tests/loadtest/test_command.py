"""The whole command against a mock server: processes, files, and exit codes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest.__main__ import main
from tests.loadtest.conftest import PROJECT, StartMock

pytestmark = pytest.mark.slow


def run_main(url: str, folder: Path, *options: str) -> dict[str, Any]:
    arguments = [
        "--base-url", url, "--input-len", "20", "--output-len", "5", "--quiet",
        "--save-result", "--result-dir", str(folder), "--result-filename", "r.json", *options,
    ]  # fmt: skip
    assert main(arguments) == 0
    found: dict[str, Any] = json.loads((folder / "r.json").read_text())
    return found


def test_a_run_writes_its_result_and_its_report(
    start_mock: StartMock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = start_mock(ttft_s=0.02, itl_s=0.002)
    page = tmp_path / "r.html"
    result = run_main(
        url, tmp_path, "--request-rate", "50", "--num-prompts", "40", "--goodput", "ttft:500",
        "--report", str(page),
    )  # fmt: skip
    assert (result["completed"], result["total_output_tokens"]) == (40, 200)
    assert result["prompt_lengths_from"] == "usage"
    assert "<svg" in page.read_text()
    assert "goodput" in capsys.readouterr().out


def test_two_processes_share_one_load(start_mock: StartMock, tmp_path: Path) -> None:
    url = start_mock(ttft_s=0.02, itl_s=0.002)
    options = ("--request-rate", "40", "--num-prompts", "40", "--processes", "2", "--save-detailed")
    result = run_main(url, tmp_path, *options)
    assert result["completed"] == 40
    assert result["num_processes"] == 2
    starts = result["start_times"]
    assert starts == sorted(starts)
    assert 0.4 < starts[-1] - starts[0] < 2.5


def test_a_capacity_is_found_near_what_the_server_can_do(
    start_mock: StartMock, tmp_path: Path
) -> None:
    # Four at once, 0.1 s each: 40 a second and no more.
    url = start_mock(ttft_s=0.1, itl_s=0.0, max_num_running=4)
    result = run_main(
        url, tmp_path, "--find-capacity", "--request-rate", "16", "--burstiness", "inf",
        "--duration", "1.5", "--goodput", "ttft:150", "--capacity-precision", "0.3",
    )  # fmt: skip
    capacity = result["capacity"]
    assert 20 <= capacity["best"]["rate_rps"] <= 44
    assert capacity["probes"][0]["attainment"] > 0.9
    assert result["request_rate"] == capacity["best"]["rate_rps"]


def test_a_server_that_is_not_there_is_exit_code_one(
    free_port: object, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()  # type: ignore[operator]
    assert main(["--port", str(port), "--ready-check-timeout-sec", "0.1"]) == 1
    assert "/v1/models" in capsys.readouterr().err


def test_a_bad_option_is_exit_code_two() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--goodput", "speed:5"])
    assert ended.value.code == 2


def test_a_missing_dataset_is_told_before_anything_is_sent(
    start_mock: StartMock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = start_mock()
    path = str(tmp_path / "nothing.csv")
    assert main(["--base-url", url, "--dataset", "azure", "--dataset-path", path]) == 1
    assert "nothing.csv" in capsys.readouterr().err


def test_an_interrupt_keeps_what_was_measured(start_mock: StartMock, tmp_path: Path) -> None:
    url = start_mock(ttft_s=0.02, itl_s=0.002)
    process = subprocess.Popen(
        [
            sys.executable, "-m", "loadtest", "--base-url", url, "--request-rate", "20",
            "--duration", "60", "--output-len", "3", "--save-result", "--result-dir",
            str(tmp_path), "--result-filename", "r.json",
        ],
        cwd=PROJECT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    with process.stderr:
        # The title, then the first line of figures: the run is well under way.
        process.stderr.readline()
        assert "finished" in process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT)
        process.stderr.read()
    assert process.wait(timeout=20) == 0
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["was_stopped"]
    assert result["completed"] > 5
