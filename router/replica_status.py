"""What the router knows of a replica; the router owns these nouns and the cluster fills them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from router.pace import StepSample

ReplicaRole = Literal["mixed", "prefill", "decode"]
EVERY_ROLE: frozenset[ReplicaRole] = frozenset(("mixed", "prefill", "decode"))
PREFILL_ALONE: frozenset[ReplicaRole] = frozenset(("prefill",))
# Who may compute outputs, and so whole requests too.
DECODERS: frozenset[ReplicaRole] = frozenset(("mixed", "decode"))


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
class GatewayAdmission:
    """How many tokens of work a replica has admitted from one gateway since it started.

    num_promised, promised_blocks: places and blocks there that the gateway has promised to
    requests which other replicas still compute the prompts of.
    """

    gateway_id: str
    admitted_tokens_total: int
    num_promised: int = 0
    promised_blocks: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica as it last described itself.

    outstanding_tokens: prompt and output tokens still to be computed for all its open requests,
    from every gateway. max_num_seqs: requests it can run at once; 0 when not known yet.
    epoch: counts its engine cores, each of which begins with an empty prefix cache; 0 if not known.
    num_waiting_tokens: prompt tokens in its line. num_prompt_tokens_left: those of running requests
    that are not computed yet. block_size: tokens of a block; 0 when not known.
    last_step: its newest step, None before the first. finished_total, generated_total: choices
    that ended normally, and tokens, since it started. fetch_token_s: seconds to fetch one token's
    KV instead of computing it, as measured there; 0.0 when it does not fetch.
    admissions: what each gateway has had admitted and has promised, so that one can tell what the
    others send.
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
    num_waiting_tokens: int = 0
    num_prompt_tokens_left: int = 0
    block_size: int = 0
    last_step: StepSample | None = None
    finished_total: int = 0
    generated_total: int = 0
    fetch_token_s: float = 0.0
    admissions: tuple[GatewayAdmission, ...] = ()
    epoch: int = 0

    @property
    def queued_prompt_tokens(self) -> int:
        """Prompt tokens that are computed before those of the next request."""
        return self.num_waiting_tokens + self.num_prompt_tokens_left
