"""Run: carries planned steps to the runner, one at a time or with the next one ready behind it.

With a thread, the next step is planned while the last one runs and its tokens are delivered while
the next one runs, so the device never waits for the scheduler (NanoFlow's asynchronous
scheduling; the price is that a sampled end is seen one step late).
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from replicas.runner import CanPause, Runner
from replicas.step_in_flight import StepInFlight
from replicas.step_plan import PlannedStep

T = TypeVar("T")


class StepPipeline(Protocol):
    """Steps in the order in which they were started."""

    @property
    def num_in_flight(self) -> int:
        """Steps started and not yet taken back."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether a result must be taken before another step may start."""
        ...

    @property
    def decides_next(self) -> bool:
        """Whether the next step cannot be planned before the one in flight has its result."""
        ...

    def wait_for_planning_time(self) -> bool:
        """Return when the next step should be planned: late, so that new arrivals are in it.

        False: not yet, but something has come that should not wait for it.
        """
        ...

    def start(self, planned: PlannedStep) -> None:
        """Hand over a step; not when full."""
        ...

    def take(self) -> StepInFlight:
        """The oldest step with its result; raises what the runner raised."""
        ...

    @property
    def can_be_overtaken(self) -> bool:
        """Whether steps may be computed between the layers of others at all."""
        ...

    def overtakable(self) -> StepInFlight | None:
        """The last step that was started, if others might still be computed between its layers."""
        ...

    def hold(self) -> bool:
        """Let that step stand still until `overtake` is called; False if it is too late."""
        ...

    def overtake(self, planned: Sequence[PlannedStep]) -> None:
        """If that step stands still, it lets these pass, one after the other, and goes on."""
        ...

    def take_overtaker(self) -> StepInFlight | None:
        """The next step that passed, once it has its result; raises what the runner raised."""
        ...

    def call(self, work: Callable[[], T]) -> T:
        """What `work` returns, called where the runner runs, after the steps in flight."""
        ...

    def close(self) -> None:
        """End the runner after the steps in flight."""
        ...


class InlinePipeline:
    """Runs each step in the caller's thread, before `start` returns."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._steps: deque[StepInFlight] = deque()

    @property
    def num_in_flight(self) -> int:
        """Steps started and not yet taken back."""
        return len(self._steps)

    @property
    def is_full(self) -> bool:
        """One step at a time."""
        return bool(self._steps)

    @property
    def decides_next(self) -> bool:
        """Its result is there, and taken before another is planned."""
        return False

    def wait_for_planning_time(self) -> bool:
        """At once: nothing runs between steps."""
        return True

    def start(self, planned: PlannedStep) -> None:
        """Compute a step."""
        step = StepInFlight(planned)
        step.run(self._runner)
        self._steps.append(step)

    def take(self) -> StepInFlight:
        """The step that was computed; raises what the runner raised."""
        return _result(self._steps.popleft())

    @property
    def can_be_overtaken(self) -> bool:
        """Nobody plans while a step is computed."""
        return False

    def overtakable(self) -> StepInFlight | None:
        """None ever is."""
        return None

    def hold(self) -> bool:
        """It is always too late."""
        return False

    def overtake(self, planned: Sequence[PlannedStep]) -> None:
        """Nothing stands still."""
        assert not planned, "no step is held"

    def take_overtaker(self) -> StepInFlight | None:
        """Nothing passed."""
        return None

    def call(self, work: Callable[[], T]) -> T:
        """What `work` returns."""
        return work()

    def close(self) -> None:
        """End the runner."""
        self._runner.close()


class ThreadedPipeline:
    """Runs steps in one other thread: one computes, one more may be ready behind it.

    thread: an executor with a single thread. A runner that computes with OpenMP must have been
    built in it: a second thread that ever led a parallel region makes OpenMP count more threads
    than cores and put them to sleep after each region, which made a step 1.4 times as long.
    stirred: set by others when something has come that cannot wait for planning time, and cleared
    by them; also set when an overtaker has ended.
    """

    CAPACITY = 2

    def __init__(
        self, runner: Runner, thread: ThreadPoolExecutor, stirred: threading.Event | None = None
    ) -> None:
        self._runner = runner
        self._thread = thread
        self._stirred = stirred or threading.Event()
        self._steps: deque[StepInFlight] = deque()
        self._overtakers: deque[StepInFlight] = deque()
        self._can_pause = isinstance(runner, CanPause)

    @property
    def num_in_flight(self) -> int:
        """Steps started and not yet taken back."""
        return len(self._steps)

    @property
    def is_full(self) -> bool:
        """Whether one step computes and another is ready."""
        return len(self._steps) >= self.CAPACITY

    @property
    def decides_next(self) -> bool:
        """Whether it holds guesses, so that nobody knows yet how many tokens come of it."""
        return bool(self._steps) and self._steps[-1].planned.decides_next

    def wait_for_planning_time(self) -> bool:
        """When the last step that was started is about to end, or when it was stirred."""
        if not self._steps:
            return True
        nearly_done = self._steps[-1].nearly_done
        if self._overtakers and self._overtakers[0].ended.is_set():
            return False
        if not nearly_done.is_set():
            self._stirred.wait()
        return nearly_done.is_set() and not self._overtakers

    def start(self, planned: PlannedStep) -> None:
        """Queue a step behind the one that computes."""
        assert not self.is_full, "take a result first"
        step = StepInFlight(planned, self._stirred)
        self._steps.append(step)
        self._thread.submit(step.run, self._runner)

    def take(self) -> StepInFlight:
        """Wait for the oldest step; raises what the runner raised."""
        step = self._steps.popleft()
        step.ended.wait()
        return _result(step)

    @property
    def can_be_overtaken(self) -> bool:
        """Whether its runner can pause."""
        return self._can_pause

    def overtakable(self) -> StepInFlight | None:
        """The last step in flight, unless it is nearly done."""
        if not self._can_pause or not self._steps or self._steps[-1].nearly_done.is_set():
            return None
        return self._steps[-1]

    def hold(self) -> bool:
        """Let it stand still from its beginning or from the next of its layers on."""
        return self._steps[-1].hold()

    def overtake(self, planned: Sequence[PlannedStep]) -> None:
        """Let it go on, behind these steps."""
        self._overtakers += self._steps[-1].give(planned)

    def take_overtaker(self) -> StepInFlight | None:
        """Without waiting for it; all have ended when the step that they passed has."""
        if not self._overtakers or not self._overtakers[0].ended.is_set():
            return None
        return _result(self._overtakers.popleft())

    def call(self, work: Callable[[], T]) -> T:
        """What `work` returns, called in the runner's thread after the steps in flight."""
        return self._thread.submit(work).result()

    def close(self) -> None:
        """End the runner after the steps in flight, then the thread."""
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()


def pipeline_of(
    runner: Runner,
    thread: ThreadPoolExecutor | None,
    *,
    is_threaded: bool,
    stirred: threading.Event | None = None,
) -> StepPipeline:
    """One with a thread, the given or a new one; or one without, in which nothing overlaps."""
    if not is_threaded:
        return InlinePipeline(runner)
    return ThreadedPipeline(runner, thread or ThreadPoolExecutor(1, "runner"), stirred)


def _result(step: StepInFlight) -> StepInFlight:
    if step.error is not None:
        raise step.error
    return step
