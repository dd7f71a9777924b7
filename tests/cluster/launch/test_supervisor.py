"""The supervisor: signals reach the child in order, and no descendant outlives it."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

# Each program prints its own line once it is ready to be signalled.
CALM = """
import signal, time
def stop(number, frame):
    raise SystemExit(3)
signal.signal(signal.SIGTERM, stop)
say("ready")
time.sleep(60)
"""
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
say("ready")
time.sleep(60)
"""
# A grandchild with a session of its own, as a server that was started and forgotten would be.
FORGETFUL = """
import subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
for _ in range(2):
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
say("ready")
time.sleep(60 if "wait" in sys.argv else 0)
"""


def start(program, *arguments, stop_timeout_s=30.0):
    """A supervisor over `program`; returns once the child has said that it is ready."""
    code = f"""
from cluster.launch.supervisor import Supervisor
def say(text):
    print(text, flush=True)
def serve():
    exec({program!r}, {{"say": say}})
    return 0
import sys
sys.exit(Supervisor(stop_timeout_s={stop_timeout_s}).run(serve))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def family(process):
    return psutil.Process(process.pid).children(recursive=True)


def all_end(processes, *, within_s=10.0):
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return alive == []


@pytest.fixture(autouse=True)
def nothing_left():
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    for child in psutil.Process().children(recursive=True):
        if child.pid not in before:
            child.kill()


@pytest.mark.parametrize("wish", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_the_child_to_stop_and_its_code_is_returned(wish):
    process = start(CALM)
    os.kill(process.pid, wish)
    assert process.wait(timeout=10) == 3


def test_a_signal_to_the_whole_group_reaches_the_child_once():
    process = start(CALM)
    os.killpg(process.pid, signal.SIGTERM)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(timeout=10) == 3


def test_a_second_interrupt_kills_a_child_that_does_not_listen():
    process = start(DEAF)
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.7)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=10) == 128 + signal.SIGKILL


def test_a_child_that_takes_too_long_to_stop_is_killed():
    process = start(DEAF, stop_timeout_s=0.2)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(timeout=10) == 128 + signal.SIGKILL


def test_what_the_child_leaves_behind_is_ended():
    process = start(FORGETFUL, "wait")
    descendants = family(process)
    assert len(descendants) == 3
    os.kill(process.pid, signal.SIGTERM)
    process.wait(timeout=10)
    assert all_end(descendants)


def test_a_killed_child_takes_its_family_with_it():
    process = start(FORGETFUL, "wait")
    descendants = family(process)
    child = psutil.Process(process.pid).children()[0]
    child.kill()
    assert process.wait(timeout=10) == 128 + signal.SIGKILL
    assert all_end(descendants)


def test_a_killed_supervisor_stops_the_child_in_order():
    process = start(CALM)
    child = psutil.Process(process.pid).children()[0]
    process.kill()
    process.wait(timeout=10)
    assert all_end([child])
