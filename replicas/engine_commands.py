"""What can be asked of a running engine, and the inbox in which it waits for the next step."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from replicas.memory.block_mover import LookedUp, MoverAnswer
from replicas.memory.handoff_jobs import Adopted, Offered, TableRead
from replicas.request import EngineRequest


@dataclass(frozen=True, slots=True)
class Submit:
    """Serve a request."""

    request: EngineRequest


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Begin to fetch the blocks of a request that will be handed over here (handoff: HandoffIn)."""

    request: EngineRequest


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request whose client left; an unknown one is a normal event."""

    request_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class FinishChoice:
    """End one choice normally: a gateway found a stop string in its text."""

    request_id: str
    attempt: int
    choice: int


@dataclass(frozen=True, slots=True)
class ClearCache:
    """Forget every cached block that is not in use."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Send views of what happens (replicas.engine_view) for so many seconds from now on."""

    seconds: float


Command = Submit | Prefetch | Cancel | FinishChoice | ClearCache | Watch | MoverAnswer


def is_urgent(command: Command) -> bool:
    """Whether it had better be taken while a step is computed than after it.

    What another engine waits for is; and what the store says, or is to be asked, of a new request,
    which would otherwise wait for its answer through the next step, too.
    """
    match command:
        case Submit() | LookedUp():
            return True
        case _:
            return is_awaited_elsewhere(command)


def is_awaited_elsewhere(command: Command) -> bool:
    """Whether another engine waits for what comes of it."""
    match command:
        case Submit(request):
            return request.handoff is not None
        case Prefetch() | Offered() | TableRead() | Adopted():
            return True
        case _:
            return False


class Inbox:
    """Commands from any thread, taken by the engine at step boundaries; a few are urgent.

    clock: monotonic seconds; every command bears the moment at which it came in. urgent: set by one
    that had better be taken while a step is computed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._commands: deque[tuple[float, Command]] = deque()
        self._filled = threading.Event()
        self.urgent = threading.Event()

    def put(self, command: Command) -> None:
        """Leave a command; never blocks."""
        self._commands.append((self._clock(), command))
        self._filled.set()
        if is_urgent(command):
            self.urgent.set()

    def drain(self) -> list[tuple[float, Command]]:
        """Everything that has come in, in order, and when."""
        self._filled.clear()
        self.urgent.clear()
        commands = []
        while self._commands:
            commands.append(self._commands.popleft())
        return commands

    def wake(self) -> None:
        """Let `wait` return although there is no command."""
        self._filled.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleep until there is a command; False if the time ran out first."""
        return self._filled.wait(timeout_s)
