"""The protocol between what decides on guesses and who makes them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from replicas.request_state import RequestState

Depths = Mapping[RequestState, int]
Drafts = Mapping[RequestState, tuple[int, ...]]


class Drafter(Protocol):
    """Guesses the next tokens of requests."""

    @property
    def needs_last_token(self) -> bool:
        """Whether it guesses after known tokens only, not after one that is being sampled."""
        ...

    @property
    def pass_s(self) -> float:
        """Seconds that it takes to guess one token further, for all requests together."""
        ...

    def look_at(self, requests: Sequence[RequestState]) -> None:
        """Take in what became known of these requests, which decode in the step being planned."""
        ...

    def chances(self, request: RequestState, count: int) -> Sequence[float]:
        """For at most `count` guesses, that each and all before it are right."""
        ...

    def draft(self, depths: Depths) -> Drafts:
        """So many guesses for each of these requests, no more than it gave chances for."""
        ...

    def note_verified(self, request: RequestState, num_guesses: int, num_accepted: int) -> None:
        """What came of a request's guesses."""
        ...

    def forget(self, request: RequestState) -> None:
        """The request ended; unknown ones are ignored."""
        ...
