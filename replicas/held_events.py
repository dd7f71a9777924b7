"""Keeps changes of the prefix cache to itself until the step that makes them true is computed."""

from collections import deque

from replicas.request import KvEvent


class HeldEvents:
    """Events in the order in which they came about, each with the step it waits for."""

    def __init__(self) -> None:
        self._held: deque[tuple[int, tuple[KvEvent, ...]]] = deque()

    def hold(self, events: tuple[KvEvent, ...], *, step: int) -> None:
        """They are true once step number `step` is computed."""
        if events:
            self._held.append((step, events))

    def release(self, *, computed_step: int) -> tuple[KvEvent, ...]:
        """Those that have become true; every step up to `computed_step` is computed."""
        released: list[KvEvent] = []
        while self._held and self._held[0][0] <= computed_step:
            released.extend(self._held.popleft()[1])
        return tuple(released)
