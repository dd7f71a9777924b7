"""Says which pools of replicas a config asks for, and what each of them is made with."""

from dataclasses import dataclass, replace
from typing import Any

from cluster.pools.pool_config import PoolConfig
from replicas.config import EngineConfig, Role

_SCHEDULER_OVERRIDES = ("max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold")
_ENGINE_OVERRIDES = ("num_threads", "kv_cache_memory_bytes")


@dataclass(frozen=True, slots=True)
class Pool:
    """One deployment of replicas with one role.

    num_replicas: engines at the start, and for good unless the pool scales, which it does if
    max_replicas is not 0. engine: what each of them runs. num_cpus, num_gpus: what Ray places one
    by.
    """

    role: Role
    num_replicas: int
    min_replicas: int
    max_replicas: int
    engine: EngineConfig
    num_cpus: float
    num_gpus: float

    @property
    def most_replicas(self) -> int:
        """Engines that there may be at once, updates not counted."""
        return max(self.num_replicas, self.max_replicas)


def share_of_a_request(
    role: Role, pool: PoolConfig, *, engine: EngineConfig, num_cpus: float, num_gpus: float
) -> tuple[Pool, ...]:
    """The prefill or the decode pool, or nothing if there is none.

    engine, num_cpus, num_gpus: of mixed replicas, in place of what the pool leaves open.
    """
    if not (pool.num_replicas or pool.max_replicas):
        return ()
    try:
        scheduler = replace(engine.scheduler, **_given(pool, _SCHEDULER_OVERRIDES))
        engine = replace(engine, role=role, scheduler=scheduler, **_given(pool, _ENGINE_OVERRIDES))
    except ValueError as error:
        raise ValueError(f"{role}: {error}") from error
    made = Pool(
        role=role,
        num_replicas=max(pool.num_replicas, pool.min_replicas, 1),
        min_replicas=pool.min_replicas,
        max_replicas=pool.max_replicas,
        engine=engine,
        num_cpus=pool.num_cpus or num_cpus,
        num_gpus=pool.num_gpus or num_gpus,
    )
    return (made,)


def _given(pool: PoolConfig, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(pool, name) for name in names if getattr(pool, name)}
