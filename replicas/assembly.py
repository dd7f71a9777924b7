"""Builds an engine from its settings: the real parts, bound together."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from replicas.config import EngineConfig
from replicas.engine import Engine
from replicas.engine_info import EngineInfo
from replicas.models.prepared_model import PreparedModel

T = TypeVar("T")
OnPhase = Callable[[str, float], None]


def build_engine(
    config: EngineConfig, *, on_phase: OnPhase = lambda _name, _seconds: None
) -> tuple[Engine, EngineInfo]:
    """An engine in this process, ready to serve, and what it turned out to be.

    on_phase: told the name and the seconds of each part of the start-up. config.scheduler's
    num_blocks and max_model_len are replaced by what memory and model allow.
    """
    phases: list[tuple[str, float]] = []

    def note(name: str, started: float) -> None:
        phases.append((name, time.perf_counter() - started))
        on_phase(*phases[-1])

    started = time.perf_counter()
    # Imported here: simulators and the engine's parent process never need torch.
    from replicas.model_runner import ModelRunner

    note("import", started)
    started = time.perf_counter()
    prepared = PreparedModel.load(config.model)
    thread = ThreadPoolExecutor(1, "runner") if config.scheduler.async_scheduling else None
    runner = _in(thread, lambda: ModelRunner(prepared, config))
    note("load", started)
    started = time.perf_counter()
    _in(thread, runner.warm_up)
    note("warm_up", started)
    scheduler = replace(
        config.scheduler, num_blocks=runner.num_blocks, max_model_len=runner.max_model_len
    )
    engine = Engine(
        scheduler,
        runner,
        clock=time.monotonic,
        end_token_ids=frozenset(prepared.eos_token_ids),
        thread=thread,
    )
    info = EngineInfo(
        model=prepared.name,
        fingerprint=prepared.fingerprint,
        role=config.role,
        dtype=runner.dtype_name,
        kv_cache_dtype=runner.layout.dtype,
        kernels=runner.kernels_name,
        deterministic=config.deterministic,
        num_threads=runner.num_threads,
        num_blocks=runner.num_blocks,
        block_size=scheduler.block_size,
        block_bytes=runner.block_bytes,
        max_model_len=runner.max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        phases=tuple(phases),
    )
    return engine, info


def _in(thread: ThreadPoolExecutor | None, build: Callable[[], T]) -> T:
    """What `build` returns, called in the thread that will run the steps."""
    return build() if thread is None else thread.submit(build).result()
