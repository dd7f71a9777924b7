"""What several tests of memory beyond the device need."""

import threading

import pytest

from replicas.simulated_runner import SimulatedRunner
from tests.replicas.memory.stores import CHUNK, PATIENCE_S


@pytest.fixture
def gate(monkeypatch):
    """Shut: a step over a whole chunk of prompt does not end before it is opened."""
    opened = threading.Event()
    compute = SimulatedRunner.run_pausing

    def run(self, batch, nearly_done, pause):
        if batch.num_tokens == CHUNK:
            assert opened.wait(PATIENCE_S), "whatever the test waited for waited for this step"
        return compute(self, batch, nearly_done, pause)

    monkeypatch.setattr(SimulatedRunner, "run_pausing", run)
    yield opened
    opened.set()
