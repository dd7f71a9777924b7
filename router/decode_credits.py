"""Promises decode capacity before a prefill starts, so that no finished prefill finds a full pool.

Without credits a burst of prefills ends at a decode pool that cannot take them, and blocks wait on
both sides until somebody times out (survey, complaint 7). A credit is blocks and one running
place on one decode replica; it is held until the replica's own figure counts the request.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodeRoom:
    """What a decode replica says it can still take: free blocks above its watermark, and places."""

    replica_id: str
    num_free_blocks: int
    num_free_places: int


@dataclass(frozen=True, slots=True)
class Credit:
    """Capacity promised to one request on one decode replica."""

    number: int
    request_id: str
    replica_id: str
    num_blocks: int


class DecodeCredits:
    """Who was promised what. max_in_flight: most hand-offs at once to one decode replica."""

    def __init__(self, *, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self._held: dict[int, Credit] = {}
        self._blocks: dict[str, int] = {}
        self._places: dict[str, int] = {}
        self._next_number = 0

    def reserve(
        self, request_id: str, num_blocks: int, rooms: Iterable[DecodeRoom]
    ) -> Credit | None:
        """A credit where most blocks stay free afterwards; None when nobody has the room now."""
        best: DecodeRoom | None = None
        best_left = -1
        for room in rooms:
            left = room.num_free_blocks - self._blocks.get(room.replica_id, 0) - num_blocks
            if self.has_room(room, num_blocks) and left > best_left:
                best, best_left = room, left
        if best is None:
            return None
        credit = Credit(self._next_number, request_id, best.replica_id, num_blocks)
        self._next_number += 1
        self._held[credit.number] = credit
        self._blocks[credit.replica_id] = self._blocks.get(credit.replica_id, 0) + num_blocks
        self._places[credit.replica_id] = self._places.get(credit.replica_id, 0) + 1
        return credit

    def has_room(self, room: DecodeRoom, num_blocks: int) -> bool:
        """Whether a credit of that size could be had there now."""
        left = room.num_free_blocks - self._blocks.get(room.replica_id, 0) - num_blocks
        places = self._places.get(room.replica_id, 0)
        return left >= 0 and places < min(room.num_free_places, self._max_in_flight)

    def release(self, credit: Credit) -> None:
        """The request is counted by the replica itself, or will not come. Safe to call twice."""
        if self._held.pop(credit.number, None) is None:
            return
        replica_id = credit.replica_id
        self._blocks[replica_id] -= credit.num_blocks
        self._places[replica_id] -= 1
        if not self._places[replica_id]:
            del self._blocks[replica_id], self._places[replica_id]

    def forget(self, replica_id: str) -> tuple[Credit, ...]:
        """The replica is gone; returns the credits that went with it."""
        gone = tuple(credit for credit in self._held.values() if credit.replica_id == replica_id)
        for credit in gone:
            self.release(credit)
        return gone

    def promised_blocks(self, replica_id: str) -> int:
        """Blocks promised on a replica that its own figure does not show yet."""
        return self._blocks.get(replica_id, 0)

    @property
    def num_held(self) -> int:
        """Hand-offs that hold a credit."""
        return len(self._held)

    def check(self) -> None:
        """Sums are those of the credits held, and nothing is left where none is."""
        for replica_id in {credit.replica_id for credit in self._held.values()} | set(self._places):
            own = [credit for credit in self._held.values() if credit.replica_id == replica_id]
            assert own, replica_id
            assert self._places[replica_id] == len(own), (replica_id, self._places)
            assert self._blocks[replica_id] == sum(credit.num_blocks for credit in own)
