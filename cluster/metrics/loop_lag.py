"""Measures how late an event loop is, which every stream that it carries feels."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from cluster.metrics.figures import Histogram

SLEEP_S = 0.1


class LoopLag:
    """Observes, ten times a second, by how much a short sleep was too long."""

    def __init__(self, lag: Histogram, *, clock: Callable[[], float]) -> None:
        self._lag = lag
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch the running loop in the background."""
        self._task = asyncio.create_task(self._watch(), name="loop lag")

    async def close(self) -> None:
        """Stop watching; safe without a start."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _watch(self) -> None:
        while True:
            due = self._clock() + SLEEP_S
            await asyncio.sleep(SLEEP_S)
            self._lag.observe(max(0.0, self._clock() - due))
