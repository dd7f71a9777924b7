"""What a request carries when one engine computes its prompt and another its output.

The prefill engine publishes a table of blocks, the decode engine adopts it (DESIGN 5). A hand-off
only saves work: whatever of it fails, the decode engine computes the prompt itself.
"""

from dataclasses import dataclass
from typing import Literal

HandoffFault = Literal[
    "absent", "expired", "stale", "corrupt", "incompatible", "unavailable", "no_room"
]
"""absent: no such table, or a block of it is gone. expired: it took longer than it may. stale: of
another try, or of other tokens. corrupt: a checksum differs. incompatible: of another model or
layout. unavailable: no store, or it does not answer. no_room: no slots in host memory."""
HandoffOutcome = Literal["published", "adopted"] | HandoffFault


def _check(generation: int, deadline_s: float) -> None:
    if not 0 <= generation < 1 << 32:
        raise ValueError(f"generation={generation}: expected 0 to 4294967295")
    if not 0.0 < deadline_s <= 86_400.0:
        raise ValueError(f"deadline_s={deadline_s}: expected more than 0 seconds, at most a day")


@dataclass(frozen=True, slots=True)
class HandoffOut:
    """Compute the prompt, sample one token, publish the blocks.

    generation: of this try; it and the request id name the table, so a pair must never come twice.
    deadline_s: from the engine's taking it in; then the blocks are given up, published or not.
    """

    generation: int
    deadline_s: float

    def __post_init__(self) -> None:
        _check(self.generation, self.deadline_s)


@dataclass(frozen=True, slots=True)
class HandoffIn:
    """Adopt the blocks that this generation published. deadline_s: longest wait for them."""

    generation: int
    deadline_s: float

    def __post_init__(self) -> None:
        _check(self.generation, self.deadline_s)


@dataclass(frozen=True, slots=True)
class HandoffNews:
    """How far a hand-off has come, told on the token stream.

    num_tokens: whose K and V were published or adopted. num_bytes: of K and V that travelled.
    seconds: on the prefill side from the first token to the published table, on the decode side
    from the request's arrival to the adopted blocks. transport: what carried them.
    """

    generation: int
    outcome: HandoffOutcome
    num_tokens: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    transport: str = ""
