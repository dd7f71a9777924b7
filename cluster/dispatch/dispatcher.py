"""The seam between the HTTP surface and the cluster: hand in a request, read its tokens."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from cluster.errors import DispatchError
from replicas.request import EngineRequest, TokenEntry


class TokenFeed(Protocol):
    """The tokens of one admitted request, as its replica computes them."""

    def __aiter__(self) -> AsyncIterator[TokenEntry]:
        """Entries in order for each choice; ends when every choice has ended.

        Raises ReplicaLost if the replica or its engine goes away first.
        """
        ...

    def finish_choice(self, choice: int) -> None:
        """End one choice early because the gateway found a stop string in its text."""
        ...

    async def close(self) -> None:
        """Leave: whatever still runs is cancelled. Safe to call twice and after the end."""
        ...


class AttemptFeed(TokenFeed, Protocol):
    """The feed of one attempt, which may be given up from outside."""

    @property
    def replica_id(self) -> str:
        """Where the attempt runs now."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether no entry will come any more."""
        ...

    def fail(self, error: DispatchError) -> None:
        """The attempt ends with an error, unless it has ended already."""
        ...


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """Whether requests make progress. `problems` is empty when healthy; sentences otherwise.

    num_replicas: replicas that can take requests now. num_starting: deployed ones that cannot yet.
    """

    num_replicas: int
    problems: tuple[str, ...] = ()
    num_starting: int = 0

    @property
    def is_healthy(self) -> bool:
        """At least one replica, and none of them stuck."""
        return self.num_replicas > 0 and not self.problems


class Dispatcher(Protocol):
    """Chooses a replica for a request and carries its tokens back."""

    async def open(self, request: EngineRequest) -> TokenFeed:
        """Submit; returns once an engine has admitted the request.

        A caller that cancels this call withdraws the request: nothing of it stays behind.
        Raises RequestRefused, NoReplica or ReplicaLost.
        """
        ...

    def health(self) -> ClusterHealth:
        """What the last statuses and heartbeats say."""
        ...
