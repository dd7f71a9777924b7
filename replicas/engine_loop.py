"""Keeps an engine stepping while there is work, and asleep while there is none."""

from collections.abc import Callable

from replicas.engine import Engine
from replicas.step_output import StepOutput

# How often requests that all wait for the store are looked at; an answer wakes the loop at once.
WAITING_POLL_S = 0.01


class EngineLoop:
    """Runs one engine in the thread that calls `run`.

    deliver: called with every step's output, from that thread; it must not block.
    """

    def __init__(self, engine: Engine, deliver: Callable[[StepOutput], None]) -> None:
        self._engine = engine
        self._deliver = deliver
        self._stopping = False

    def run(self) -> None:
        """Step until `stop`; raises what the engine raises."""
        engine = self._engine
        while not self._stopping:
            output = engine.step()
            if output is not None:
                self._deliver(output)
            elif not engine.has_work:
                engine.inbox.wait()
            elif engine.is_waiting:
                engine.inbox.wait(WAITING_POLL_S)

    def stop(self) -> None:
        """Let `run` return after the step under way; from any thread."""
        self._stopping = True
        self._engine.inbox.wake()
