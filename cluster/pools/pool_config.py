"""Settings of the pools: how many replicas of each kind, what differs in them, how they scale."""

from dataclasses import dataclass
from typing import Literal, get_args

Disaggregation = Literal["auto", "always", "never"]
HandoffTransport = Literal["auto", "store", "shm", "grpc"]


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """One of the two pools that share a request; 0 takes the value that mixed replicas have.

    num_replicas: engines of this pool; 0 does without it.
    min_replicas: fewest engines while the pool scales; 0 lets an idle pool end.
    max_replicas: most engines; more than 0 lets the pool scale with its load.
    num_cpus: CPU slots that Ray places one replica of this pool by.
    num_gpus: GPUs of one replica of this pool.
    num_threads: threads of one step.
    kv_cache_memory_bytes: memory for K and V of one engine.
    max_num_seqs: most requests that run at once.
    max_num_batched_tokens: token budget of one step.
    long_prefill_token_threshold: most tokens that one request may have in a step.
    """

    num_replicas: int = 0
    min_replicas: int = 0
    max_replicas: int = 0
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    num_threads: int = 0
    kv_cache_memory_bytes: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    long_prefill_token_threshold: int = 0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 or more")
        check_bounds(self.min_replicas, self.max_replicas, self.num_replicas)


@dataclass(frozen=True, slots=True)
class HandoffConfig:
    """Requests whose prompt one pool computes and whose output another one does.

    disaggregation: which prompts go to the prefill pool: those for which that is predicted to be
        better, all, or none.
    min_handoff_tokens: prompts of which the decode side would have fewer tokens to compute stay
        there, with disaggregation auto.
    interference_weight: what a second counts that a prefill takes from running requests, against a
        second of the request's own, with disaggregation auto.
    handoff_transport: how blocks travel from prefill to decode: by the block store, by shared
        memory of one machine, by gRPC between both replicas, or by the fastest of these.
    max_handoffs: most hand-offs at once to one decode replica, from each gateway.
    handoff_reserve_timeout_s: longest wait for room in the decode pool before a prompt is computed
        there like any other.
    handoff_prefill_timeout_s: longest wait for the prefill pool before the decode side computes
        the prompt itself.
    handoff_adopt_timeout_s: longest wait of a decode replica for the blocks of a hand-off.
    max_lent_replicas: most prefill replicas that also take whole requests while the decode pool is
        full; one always stays.
    lend_after_s: how long the decode pool has to be full before one is lent, and the least time
        that it stays so.
    """

    disaggregation: Disaggregation = "auto"
    min_handoff_tokens: int = 64
    interference_weight: float = 0.2
    handoff_transport: HandoffTransport = "auto"
    max_handoffs: int = 64
    handoff_reserve_timeout_s: float = 2.0
    handoff_prefill_timeout_s: float = 120.0
    handoff_adopt_timeout_s: float = 10.0
    max_lent_replicas: int = 0
    lend_after_s: float = 10.0

    def __post_init__(self) -> None:
        for name, choices in (
            ("disaggregation", get_args(Disaggregation)),
            ("handoff_transport", get_args(HandoffTransport)),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected {' or '.join(choices)}")
        for name in (
            *("min_handoff_tokens", "interference_weight"),
            *("max_lent_replicas", "lend_after_s"),
        ):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 or more")
        if self.max_handoffs < 1:
            raise ValueError(f"max_handoffs={self.max_handoffs}: expected at least 1")
        for name in (
            "handoff_reserve_timeout_s",
            "handoff_prefill_timeout_s",
            "handoff_adopt_timeout_s",
        ):
            if not 0.0 < getattr(self, name) <= 86_400.0:
                raise ValueError(
                    f"{name}={getattr(self, name)}: expected more than 0 seconds, at most a day"
                )


@dataclass(frozen=True, slots=True)
class ScalingConfig:
    """When a pool that scales grows and shrinks; only pools with max_replicas do.

    target_backlog_s: how long a pool may need for the work that it has.
    target_kv_ratio: share of the KV blocks that requests may hold.
    target_attainment: share of requests that have to meet ttft_slo_s and tpot_slo_s, if set.
    upscale_delay_s: how long a pool has to want more replicas before it gets them.
    downscale_delay_s: how long a pool has to need fewer replicas before it loses any.
    idle_to_zero_s: a pool with min_replicas 0 ends its last replica after so long without work.
    """

    target_backlog_s: float = 5.0
    target_kv_ratio: float = 0.85
    target_attainment: float = 0.95
    upscale_delay_s: float = 5.0
    downscale_delay_s: float = 120.0
    idle_to_zero_s: float = 300.0

    def __post_init__(self) -> None:
        if not self.target_backlog_s > 0.0:
            raise ValueError(f"target_backlog_s={self.target_backlog_s}: expected more than 0")
        for name in ("target_kv_ratio", "target_attainment"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ValueError(f"{name}={getattr(self, name)}: expected a share in (0, 1]")
        for name in ("upscale_delay_s", "downscale_delay_s", "idle_to_zero_s"):
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 or more seconds")


def check_bounds(min_replicas: int, max_replicas: int, num_replicas: int) -> None:
    """Raises ValueError unless the bounds, where there are any, are in order."""
    if max_replicas and not min_replicas <= max_replicas:
        raise ValueError(f"min_replicas={min_replicas}: expected at most {max_replicas=}")
    if max_replicas and num_replicas > max_replicas:
        raise ValueError(f"num_replicas={num_replicas}: expected at most {max_replicas=}")
    if min_replicas and not max_replicas:
        raise ValueError(f"min_replicas={min_replicas}: expected max_replicas too, which scales")
