"""Names the phases of a start, logs what each took, and says which of them failed and why."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)


class StartFailed(Exception):
    """The service could not start; the message is one line for the one who started it."""


class ServiceLost(Exception):
    """Something that the running service cannot do without has ended."""


class StartPhases:
    """Times phases against one clock.

    expected: the errors of the outside world that a phase may meet; anything else is a fault of
    ours and keeps its traceback.
    """

    def __init__(
        self,
        *,
        expected: tuple[type[Exception], ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._expected = expected
        self._clock = clock
        self._started_at = clock()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Raises StartFailed, in one line, for an expected error inside."""
        began_at = self._clock()
        log.info("phase begins name=%r", name)
        try:
            yield
        except StartFailed as error:
            raise StartFailed(f"{name}: {error}") from error
        except self._expected as error:
            raise StartFailed(f"{name}: {_one_line(error)}") from error
        log.info("phase done name=%r seconds=%.1f", name, self._clock() - began_at)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started_at


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
