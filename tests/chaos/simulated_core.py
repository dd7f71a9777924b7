"""An engine core that is real but for its arithmetic, in a process of its own, to be killed.

Scheduler, allocator, host tier, block store and hand-off are the product's; the runner computes a
digest of the whole prefix, so a token that comes out right has seen every token before it.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvstore.break_even import PrefillCost
from replicas.assembly import OnPhase, Outside
from replicas.config import EngineConfig
from replicas.engine import Engine
from replicas.engine_client import ProcessEngine
from replicas.engine_info import EngineInfo
from replicas.engine_process import main
from replicas.memory.block_mover import BlockMover, NoMover
from replicas.memory.block_tiers import TierSetup
from replicas.memory.move_costs import BlockCost
from replicas.models.prepared_model import PreparedModel
from replicas.simulated_runner import SimulatedRunner, StepCost, _mix
from replicas.step_output import StepOutput
from replicas.store_mover import StoreAccess

VOCAB_SIZE = 93
NUM_BLOCKS = 2048
NUM_HOST_SLOTS = 512
STEP = StepCost(fixed_s=0.02, per_token_s=2e-5)
CORE_MODULE = "tests.chaos.simulated_core"


def expected_tokens(prompt: Sequence[int], *, seed: int, max_tokens: int) -> list[int]:
    """What SimulatedRunner samples for a request that nothing happens to."""
    known = list(prompt)
    digest = 0
    for token in known:
        digest = _mix(digest ^ (token + 1))
    for position in range(len(prompt), len(prompt) + max_tokens):
        token = _mix(_mix(digest ^ _mix(seed)) + position) % VOCAB_SIZE
        known.append(token)
        digest = _mix(digest ^ (token + 1))
    return known[len(prompt) :]


def build_simulated_engine(
    config: EngineConfig, *, on_phase: OnPhase, outside: Outside | None
) -> tuple[Engine, EngineInfo]:
    """As replicas.assembly.build_engine, without weights."""
    prepared = PreparedModel.load(config.model)
    scheduler = replace(
        config.scheduler,
        num_blocks=NUM_BLOCKS,
        max_model_len=min(config.scheduler.max_model_len, prepared.max_model_len),
        num_host_slots=NUM_HOST_SLOTS if outside is not None else 0,
        async_scheduling=False,
    )
    runner = SimulatedRunner(
        num_blocks=scheduler.num_blocks,
        block_size=scheduler.block_size,
        max_num_seqs=scheduler.max_num_seqs,
        vocab_size=VOCAB_SIZE,
        cost=STEP,
    )
    mover: BlockMover = NoMover()
    if outside is not None:
        buffer = outside.make_buffer(NUM_HOST_SLOTS, runner.layout.payload_bytes)
        runner.bind_host_buffer(buffer)
        mover = outside.make_mover(runner.layout, buffer)
    cost = BlockCost(PrefillCost(1.0, 0.0), scheduler.block_size, runner.layout.payload_bytes)
    timeout_s = outside.fetch_timeout_s if outside is not None else 0.0
    engine = Engine(
        scheduler,
        runner,
        clock=time.monotonic,
        end_token_ids=frozenset(prepared.eos_token_ids),
        tiers=TierSetup(cost, mover, timeout_s, time.monotonic),
    )
    on_phase("build", 0.0)
    info = EngineInfo(
        model=prepared.name,
        fingerprint=prepared.fingerprint,
        role=config.role,
        dtype="float32",
        kernels="simulated",
        deterministic=True,
        num_threads=1,
        num_blocks=scheduler.num_blocks,
        block_size=scheduler.block_size,
        block_bytes=runner.layout.payload_bytes,
        max_model_len=scheduler.max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        layout=runner.layout,
        num_host_slots=scheduler.num_host_slots,
    )
    return engine, info


@dataclass(frozen=True, slots=True)
class StartSimulatedCore:
    """Stands in for replicas.engine_client.start_engine; can be sent to another process."""

    def __call__(
        self,
        config: EngineConfig,
        *,
        on_output: Callable[[StepOutput], None],
        on_exit: Callable[[str], None],
        store: StoreAccess | None = None,
    ) -> ProcessEngine:
        """Start a core process and wait until it can serve."""
        # Pages of the host tier are taken when they are written to, so its size costs nothing.
        config = replace(config, swap_space_bytes=max(config.swap_space_bytes, 1 << 20))
        return ProcessEngine(
            config, on_output=on_output, on_exit=on_exit, store=store, core_module=CORE_MODULE
        )


if __name__ == "__main__":
    sys.exit(main(build_simulated_engine))
