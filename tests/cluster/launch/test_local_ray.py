"""The local Ray: closed to whoever lacks the token, two fit beside each other, nothing stays."""

import os
import subprocess
import sys

import psutil
import pytest

from cluster.launch.run_folder import make_ray_token, make_run_folder

pytestmark = [pytest.mark.ray, pytest.mark.slow]

# Ray reads its environment on import, so each one lives in an interpreter of its own.
PROGRAM = """
import os, sys
from pathlib import Path
from cluster.launch.run_folder import make_ray_token
from cluster.ray_settings import ray_environment
folder = Path(sys.argv[1])
os.environ.update(ray_environment() | make_ray_token(folder))
from cluster.launch.local_ray import LocalRay, RayPlace
import ray
place = RayPlace(folder, num_cpus=2, object_store_memory_bytes=100 * 1024 * 1024)
with LocalRay(place, namespace="test") as node:
    assert ray.get(ray.remote(lambda: 6 * 7).remote()) == 42
    print(ray.get_runtime_context().gcs_address, *node.dead_processes(), flush=True)
    sys.stdin.readline()
"""


class Driver:
    def __init__(self, folder):
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def address(self):
        return self.process.stdout.readline().strip()

    def family(self):
        return psutil.Process(self.process.pid).children(recursive=True)

    def finish(self):
        self.process.communicate("\n", timeout=60)


@pytest.fixture
def start():
    drivers = []

    def start():
        drivers.append(Driver(make_run_folder()))
        return drivers[-1]

    yield start
    for driver in drivers:
        if driver.process.poll() is None:
            driver.finish()
        subprocess.run(["rm", "-rf", str(driver.folder)], check=True)


def test_two_run_beside_each_other_and_both_end_without_a_trace(start):
    first, second = start(), start()
    assert first.address().startswith("127.0.0.")
    assert second.address().startswith("127.0.0.")
    processes = first.family() + second.family()
    first.finish()
    second.finish()
    assert (first.process.returncode, second.process.returncode) == (0, 0)
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert alive == []


def test_nobody_enters_with_another_token(start, tmp_path):
    address = start().address()
    code = f"import ray; ray.init(address={address!r}, logging_level='ERROR'); print('entered')"
    stranger = {
        **os.environ,
        **make_ray_token(tmp_path),
        "RAY_gcs_rpc_server_connect_timeout_s": "2",
    }
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=stranger,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode != 0
    assert "entered" not in ended.stdout
    assert "token" in ended.stderr.lower()
