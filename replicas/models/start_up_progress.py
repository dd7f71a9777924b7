"""Shows how far the slow parts of a start are, and logs what each phase took."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartUpProgress:
    """Bars on stderr (tqdm) while `is_shown`; a log line with seconds for each phase always."""

    is_shown: bool = True
    clock: Callable[[], float] = time.monotonic

    @contextmanager
    def phase(self, name: str, *, total_bytes: int) -> Iterator[Callable[[int], object]]:
        """Yields a function that is told of each portion of bytes done."""
        # tqdm is wanted only when there is something to wait for; a cached start skips its import.
        from tqdm import tqdm

        started_at = self.clock()
        bar = tqdm(
            total=total_bytes, desc=name, unit="B", unit_scale=True, disable=not self.is_shown
        )
        with bar:
            yield bar.update
        log.info(
            "model phase done phase=%r bytes=%d seconds=%.2f",
            name,
            total_bytes,
            self.clock() - started_at,
        )
