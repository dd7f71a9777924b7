"""Builds an engine from its settings: the real parts, bound together."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from kvstore.block_store import BlockLayout
from replicas.config import EngineConfig, SchedulerConfig
from replicas.engine import Engine
from replicas.engine_info import EngineInfo
from replicas.memory.block_mover import BlockMover, NoMover
from replicas.memory.block_tiers import TierSetup
from replicas.memory.host_buffer import HostBuffer
from replicas.memory.move_costs import BlockCost
from replicas.models.model_config import ModelConfig
from replicas.models.prefill_cost import prefill_cost
from replicas.models.prepared_model import PreparedModel
from replicas.speculation.config import SpeculationConfig

if TYPE_CHECKING:
    from replicas.model_runner import ModelRunner

log = logging.getLogger(__name__)

T = TypeVar("T")
OnPhase = Callable[[str, float], None]


def _no_mover(_layout: BlockLayout, _buffer: HostBuffer) -> BlockMover:
    return NoMover()


@dataclass(frozen=True, slots=True)
class Outside:
    """What an engine's owner provides for its blocks outside the device.

    make_buffer: the bytes of the host tier, given num_slots and slot_bytes; the owner closes them.
    make_mover: who moves blocks between them and a store. fetch_timeout_s: longest that a request
    waits for the store.
    """

    make_buffer: Callable[[int, int], HostBuffer]
    make_mover: Callable[[BlockLayout, HostBuffer], BlockMover] = _no_mover
    fetch_timeout_s: float = 0.0


class BuildEngine(Protocol):
    """The shape of build_engine, for a core over another runner."""

    def __call__(
        self, config: EngineConfig, *, on_phase: OnPhase, outside: Outside | None
    ) -> tuple[Engine, EngineInfo]:
        """An engine ready to serve, and what it turned out to be."""
        ...


def build_engine(
    config: EngineConfig,
    *,
    on_phase: OnPhase = lambda _name, _seconds: None,
    outside: Outside | None = None,
) -> tuple[Engine, EngineInfo]:
    """An engine in this process, ready to serve, and what it turned out to be.

    on_phase: told the name and the seconds of each part of the start-up. config.scheduler's
    num_blocks, num_host_slots, max_model_len and max_prefill_tokens are replaced by what memory,
    model and processor allow, and speculative_method "auto" by what the kernels allow.
    outside: without it there is no host tier, whatever swap_space_bytes says.
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
        config.scheduler,
        num_blocks=runner.num_blocks,
        max_model_len=runner.max_model_len,
        max_prefill_tokens=config.scheduler.max_prefill_tokens or runner.saturating_tokens,
        speculation=_speculation(config.scheduler.speculation, runner),
        num_host_slots=config.swap_space_bytes // runner.layout.payload_bytes if outside else 0,
    )
    engine = Engine(
        scheduler,
        runner,
        clock=time.monotonic,
        end_token_ids=frozenset(prepared.eos_token_ids),
        thread=thread,
        tiers=_tier_setup(prepared, runner, scheduler, outside, thread),
    )
    return engine, _info_of(prepared, runner, config, scheduler, tuple(phases))


def _speculation(config: SpeculationConfig, runner: "ModelRunner") -> SpeculationConfig:
    """Guessed by itself only where nobody can tell from the output."""
    if config.speculative_method != "auto":
        return config
    config = replace(config, speculative_method="ngram" if runner.rows_are_exact else "off")
    log.info("speculation chosen method=%s", config.speculative_method)
    return config


def _info_of(
    prepared: PreparedModel,
    runner: "ModelRunner",
    config: EngineConfig,
    scheduler: SchedulerConfig,
    phases: tuple[tuple[str, float], ...],
) -> EngineInfo:
    return EngineInfo(
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
        phases=phases,
        layout=runner.layout,
        num_host_slots=scheduler.num_host_slots,
        quantization=config.quantization,
    )


def _tier_setup(
    prepared: PreparedModel,
    runner: "ModelRunner",
    scheduler: SchedulerConfig,
    outside: Outside | None,
    thread: ThreadPoolExecutor | None,
) -> TierSetup:
    """The host tier's memory, in the runner's hands, and who moves blocks beyond it."""
    layout = runner.layout
    mover: BlockMover = NoMover()
    if outside is not None and scheduler.num_host_slots:
        buffer = outside.make_buffer(scheduler.num_host_slots, layout.payload_bytes)
        _in(thread, lambda: runner.bind_host_buffer(buffer))
        mover = outside.make_mover(layout, buffer)
    model = ModelConfig.load(prepared.folder, name=prepared.name)
    return TierSetup(
        BlockCost(prefill_cost(model), scheduler.block_size, layout.payload_bytes),
        mover,
        outside.fetch_timeout_s if outside is not None else 0.0,
        time.monotonic,
    )


def _in(thread: ThreadPoolExecutor | None, build: Callable[[], T]) -> T:
    """What `build` returns, called in the thread that will run the steps."""
    return build() if thread is None else thread.submit(build).result()
