"""Priority belongs to a thread: the one that asks gives way, the others do not."""

import os
import subprocess
import sys
import threading

import pytest

from replicas.thread_priority import NICENESS, yield_to_engine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="niceness of threads is Linux's")


def niceness():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_only_the_calling_thread_gives_way():
    found = {}

    def give_way():
        yield_to_engine()
        found["inside"] = niceness()

    before = niceness()
    thread = threading.Thread(target=give_way)
    thread.start()
    thread.join()
    assert found["inside"] == max(NICENESS, before)
    assert niceness() == before


def test_a_process_started_by_another_thread_keeps_its_priority():
    before = niceness()
    thread = threading.Thread(target=yield_to_engine)
    thread.start()
    thread.join()
    code = "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert int(printed) == before
