"""The protocol between the request router and the many ways to choose one replica of several."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from router.replica_status import ReplicaStatus


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """What a choice may depend on.

    prompt_tokens and max_output_tokens (over all choices) are the most work the request can be.
    block_hashes: names of the prompt's full blocks, first to last (kvstore.block_hash).
    """

    request_id: str
    prompt_tokens: int
    max_output_tokens: int
    block_hashes: tuple[bytes, ...] = ()

    @property
    def work_tokens(self) -> int:
        """Tokens of work this request may add to a replica."""
        return self.prompt_tokens + self.max_output_tokens


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that may take the request.

    reserved_tokens: work this router sent there that the replica's own figure does not show yet.
    """

    status: ReplicaStatus
    reserved_tokens: int

    @property
    def load_tokens(self) -> int:
        """Tokens of work in front of a request that would go there now."""
        return self.status.outstanding_tokens + self.reserved_tokens


class RoutingPolicy(Protocol):
    """One way to choose; a choice of order and nothing else."""

    @property
    def name(self) -> str:
        """What the choice is counted as."""
        ...

    def choose(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> Candidate:
        """One of `candidates`, which holds at least one, in a stable order."""
        ...
