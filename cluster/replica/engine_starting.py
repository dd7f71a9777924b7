"""How a replica gets its engine: the real one by default, another one where a test asks for it."""

from collections.abc import Callable
from typing import Protocol

from cluster.replica.engine_supervisor import EngineHandle
from replicas.config import EngineConfig
from replicas.step_output import StepOutput
from replicas.store_mover import StoreAccess


class EngineStarter(Protocol):
    """The shape of replicas.engine_client.start_engine; must survive being sent to a process."""

    def __call__(
        self,
        config: EngineConfig,
        *,
        on_output: Callable[[StepOutput], None],
        on_exit: Callable[[str], None],
        store: StoreAccess | None = None,
    ) -> EngineHandle:
        """Start a core and wait until it can serve. store: where its blocks go beyond memory."""
        ...


def start_real_engine(
    config: EngineConfig,
    *,
    on_output: Callable[[StepOutput], None],
    on_exit: Callable[[str], None],
    store: StoreAccess | None = None,
) -> EngineHandle:
    """Start an engine core in a process of its own."""
    # Imported here because it loads torch, which only a replica's process should pay for.
    from replicas.engine_client import start_engine

    return start_engine(config, on_output=on_output, on_exit=on_exit, store=store)
