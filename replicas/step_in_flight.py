"""One step between its planning and its result, and the prompts that may overtake it.

A step of outputs stands still between two layers while prompts that came in meanwhile are computed,
one after the other, and then goes on. Nothing is computed twice or in vain. A prompt's first token
does not wait for the rest of the outputs' step, nor for their share of its own; the outputs wait
now for the prompts that they would have waited for in the step after this one.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from replicas.batch import Sampled
from replicas.runner import CanPause, Pause, Runner
from replicas.step_plan import PlannedStep


@dataclass(slots=True)
class StepInFlight:
    """A step between its planning and its result.

    run_s: the runner's own time in seconds, less what overtakers took. commit_s: what it took to
    take its tokens in. stirred: set with nearly_done, and when an overtaker has ended, for whoever
    waits for that and for something else. overtakers: the steps computed inside this one, in order.
    """

    planned: PlannedStep
    stirred: threading.Event = field(default_factory=threading.Event)
    nearly_done: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    sampled: Sampled | None = None
    error: BaseException | None = None
    run_s: float = 0.0
    commit_s: float = 0.0
    overtakers: "list[StepInFlight]" = field(default_factory=list)
    _runner: Runner | None = None
    _pause: Pause = field(init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _line: "deque[StepInFlight]" = field(default_factory=deque)
    _is_held: bool = False
    _stood_still_s: float = 0.0

    def __post_init__(self) -> None:
        self._pause = Pause(self._let_pass)

    def run(self, runner: Runner) -> None:
        """Compute it; an error is kept for whoever asks for the result."""
        self._runner = runner
        started = time.perf_counter()
        self._let_pass()
        try:
            if isinstance(runner, CanPause):
                self.sampled = runner.run_pausing(
                    self.planned.batch, self._note_nearly_done, self._pause
                )
            else:
                self.sampled = runner.run(self.planned.batch, self._note_nearly_done)
        except BaseException as error:  # noqa: BLE001 - it is raised again where it is awaited
            self.error = error
        self._note_nearly_done()
        self.run_s = time.perf_counter() - started - self._stood_still_s
        self.ended.set()

    # For whoever plans, in another thread.

    @property
    def num_passing_tokens(self) -> int:
        """Tokens of all that has overtaken it or is about to."""
        return sum(step.planned.batch.num_tokens for step in self.overtakers)

    def hold(self) -> bool:
        """Let it stand still until `give` says for what; False if it is too late."""
        with self._changed:
            if self.nearly_done.is_set():
                return False
            self._is_held = True
            self._pause.wanted[0] = 1
        return True

    def give(self, planned: Sequence[PlannedStep]) -> "Sequence[StepInFlight]":
        """If it is held, let these pass, and go on."""
        assert self._is_held or not planned, "a step that does not stand still lets nobody pass"
        # Nobody waits for these to be nearly done.
        passing = [StepInFlight(each) for each in planned]
        with self._changed:
            self.overtakers += passing
            self._line += passing
            self._is_held = False
            self._changed.notify()
        return passing

    # For the runner.

    def _let_pass(self) -> None:
        if not self._pause.wanted[0]:
            return
        assert self._runner is not None
        started = time.perf_counter()
        while (step := self._next_in_line()) is not None:
            step.run(self._runner)
            self.stirred.set()
        self._stood_still_s += time.perf_counter() - started

    def _next_in_line(self) -> "StepInFlight | None":
        with self._changed:
            self._changed.wait_for(lambda: self._line or not self._is_held)
            if self._line:
                return self._line.popleft()
            self._pause.wanted[0] = 0
            return None

    def _note_nearly_done(self) -> None:
        while not self.nearly_done.is_set():
            self._let_pass()
            with self._changed:
                if not self._is_held and not self._line:
                    self.nearly_done.set()
        self.stirred.set()
