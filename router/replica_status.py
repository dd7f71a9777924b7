"""What the router knows of a replica; the router owns these nouns and the cluster fills them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

ReplicaRole = Literal["mixed", "prefill", "decode"]


class ReplicaState(StrEnum):
    """Whether a replica may be given requests.

    ACTIVE ones are chosen; SUSPECT ones (heartbeats missing) only when no active one is left;
    STARTING ones (stream not open, or engine core not ready), DRAINING ones (left the deployment,
    still working) and GONE ones never.
    """

    STARTING = "starting"
    ACTIVE = "active"
    SUSPECT = "suspect"
    DRAINING = "draining"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica as it last described itself.

    outstanding_tokens: prompt and output tokens still to be computed for all its open requests,
    from every gateway. max_num_seqs: requests it can run at once; 0 when not known yet.
    """

    replica_id: str
    role: ReplicaRole = "mixed"
    state: ReplicaState = ReplicaState.STARTING
    outstanding_tokens: int = 0
    num_running: int = 0
    num_waiting: int = 0
    max_num_seqs: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
