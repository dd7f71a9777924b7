"""Engines over the simulated runner, and what they say, for tests of everything but arithmetic."""

import random
from collections.abc import Callable, Iterable, Iterator

from kvstore.block_hash import root_hash
from kvstore.break_even import PrefillCost
from replicas.batch import Batch
from replicas.config import SchedulerConfig
from replicas.engine import Engine
from replicas.engine_commands import Submit
from replicas.memory.block_mover import BlockMover, NoMover
from replicas.memory.block_tiers import TierSetup
from replicas.memory.host_buffer import HostBuffer
from replicas.memory.move_costs import BlockCost
from replicas.request import EngineRequest, SamplingParams, TokenEntry
from replicas.simulated_runner import SimulatedRunner
from replicas.step_output import StepOutput

BLOCK_SIZE = 4
VOCAB_SIZE = 50


class ManualClock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class RestingRunner(SimulatedRunner):
    """Rests before each row, so that things come in while a step is computed."""

    rest: Callable[[Batch], None]

    def _extend_row(self, batch: Batch, row: int) -> Iterator[int]:
        self.rest(batch)
        yield from super()._extend_row(batch, row)


def config(**overrides: object) -> SchedulerConfig:
    """Small numbers, so that every limit is met soon."""
    values: dict[str, object] = {
        "block_size": BLOCK_SIZE,
        "num_blocks": 64,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "max_model_len": 128,
        "async_scheduling": False,
    }
    return SchedulerConfig(**{**values, **overrides})  # type: ignore[arg-type]


def engine(
    scheduler: SchedulerConfig | None = None,
    *,
    clock: ManualClock | None = None,
    end_token_ids: Iterable[int] = (),
    mover: BlockMover | None = None,
    fetch_timeout_s: float = 1.0,
    host: HostBuffer | None = None,
    vocab_size: int = VOCAB_SIZE,
    rest: Callable[[Batch], None] = lambda _batch: None,
    **overrides: object,
) -> Engine:
    """An engine whose tokens depend on every block it reads, in whichever tier that lay.

    host: the bytes of its host tier, where a test wants to see them. vocab_size: of what it
    samples; the fewer there are, the more its text repeats. rest: what its runner does
    before each row of a step.
    """
    scheduler = scheduler or config(**overrides)
    runner = RestingRunner(
        num_blocks=scheduler.num_blocks,
        block_size=scheduler.block_size,
        max_num_seqs=scheduler.max_num_seqs,
        vocab_size=vocab_size,
    )
    runner.rest = rest
    if scheduler.num_host_slots:
        slot_bytes = runner.layout.payload_bytes
        runner.bind_host_buffer(
            host or HostBuffer.create(num_slots=scheduler.num_host_slots, slot_bytes=slot_bytes)
        )
    clock = clock or ManualClock()
    cost = BlockCost(PrefillCost(1.0, 0.0), scheduler.block_size, runner.layout.payload_bytes)
    return Engine(
        scheduler,
        runner,
        clock=clock,
        end_token_ids=frozenset(end_token_ids),
        tiers=TierSetup(cost, mover or NoMover(), fetch_timeout_s, clock),
    )


def request(
    request_id: str,
    prompt: Iterable[int],
    *,
    max_tokens: int = 8,
    tenant: bytes = b"",
    num_choices: int = 1,
    attempt: int = 0,
    priority: int = 0,
    emitted: Iterable[int] = (),
    queue_timeout_s: float | None = None,
    session_id: str | None = None,
    **sampling: object,
) -> EngineRequest:
    return EngineRequest(
        request_id,
        tuple(prompt),
        SamplingParams(max_tokens=max_tokens, **sampling),  # type: ignore[arg-type]
        root=root_hash(fingerprint="test", block_size=BLOCK_SIZE, salt=tenant),
        num_choices=num_choices,
        attempt=attempt,
        priority=priority,
        emitted_token_ids=tuple(emitted),
        queue_timeout_s=queue_timeout_s,
        session_id=session_id,
    )


def prompt(length: int, *, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCAB_SIZE), k=length)


def submit(target: Engine, *requests: EngineRequest) -> None:
    for one in requests:
        target.inbox.put(Submit(one))


def run(target: Engine) -> list[StepOutput]:
    """Step until idle, checking every invariant after each step."""
    outputs = []
    while True:
        output = target.step()
        target.check()
        if output is not None:
            outputs.append(output)
        elif not target.has_work:
            return outputs
        elif target.is_waiting:
            target.inbox.wait(0.001)


def entries(outputs: Iterable[StepOutput]) -> list[TokenEntry]:
    return [entry for output in outputs for entry in output.entries]


def tokens(outputs: Iterable[StepOutput]) -> dict[tuple[str, int], list[int]]:
    """Token ids of every choice, by (request id, choice); indices must be without a gap."""
    found: dict[tuple[str, int], list[int]] = {}
    for entry in entries(outputs):
        if entry.token_ids:
            so_far = found.setdefault((entry.request_id, entry.choice), [])
            assert entry.index == len(so_far), "a token is missing or doubled"
            so_far.extend(entry.token_ids)
    return found


def alone(one: EngineRequest, **overrides: object) -> dict[tuple[str, int], list[int]]:
    """The tokens of a request that has an engine to itself."""
    target = engine(**overrides)
    submit(target, one)
    return tokens(run(target))
