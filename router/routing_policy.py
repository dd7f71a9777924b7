"""The protocol between the request router and the many ways to choose one replica of several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from router.pace import Pace
from router.replica_status import ReplicaStatus


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """What a choice may depend on.

    prompt_tokens and max_output_tokens (over all choices) are the most work the request can be.
    block_hashes: names of the prompt's full blocks, first to last (kvstore.block_hash).
    session_id: what the client calls its conversation; empty if it does not say.
    max_ttft_s, max_tpot_s: latencies that the answer is worthless beyond; None: none is stated.
    """

    request_id: str
    prompt_tokens: int
    max_output_tokens: int
    block_hashes: tuple[bytes, ...] = ()
    session_id: str = ""
    max_ttft_s: float | None = None
    max_tpot_s: float | None = None

    @property
    def work_tokens(self) -> int:
        """Tokens of work this request may add to a replica."""
        return self.prompt_tokens + self.max_output_tokens


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that may take the request.

    reserved_tokens, reserved_prompt_tokens, num_reserved: work, prompt tokens and requests that
    this router sent there and that the replica's own figures do not show yet. unseen_tokens: work
    that other gateways are expected to have sent there meanwhile. pace: as measured, or as that of
    its peers while it was not. load_tokens: work in front of a request that would go there now.
    """

    status: ReplicaStatus
    reserved_tokens: int
    reserved_prompt_tokens: int = 0
    num_reserved: int = 0
    unseen_tokens: float = 0.0
    pace: Pace = Pace()
    # Kept, since every policy reads it of every candidate and few candidates change in between.
    load_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        load_tokens = self.status.outstanding_tokens + self.reserved_tokens
        object.__setattr__(self, "load_tokens", load_tokens)


@dataclass(frozen=True, slots=True)
class Choice:
    """Where the request goes. reason: what the decision is counted as."""

    candidate: Candidate
    reason: str


@dataclass(frozen=True, slots=True)
class Unmeetable:
    """No candidate can meet the latencies that the request states; a 429, not a failure.

    reason: the latency that the best candidate misses. The predictions are that candidate's, in
    seconds. retry_after_s: when its backlog will have shrunk enough, if nothing else comes.
    """

    reason: Literal["ttft", "tpot"]
    predicted_ttft_s: float
    predicted_tpot_s: float
    retry_after_s: float


Hits = Mapping[str, int]


class RoutingPolicy(Protocol):
    """One way to choose; a choice of order and nothing else.

    uses_hits: whether `hits` has to be looked up for it.
    """

    @property
    def uses_hits(self) -> bool:
        """Whether it looks at what the prefix caches hold."""
        ...

    def choose(
        self, request: RoutingRequest, candidates: Sequence[Candidate], hits: Hits
    ) -> Choice | Unmeetable:
        """One of `candidates`, which holds at least one, in a stable order.

        hits: by replica id, how many of the prompt's first blocks it holds; zeros are left out.
        """
        ...
