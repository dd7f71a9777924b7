"""Moves carry whole blocks, in their order, before anything of their step is computed."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.batch import Batch, BlockMove, CopyBlock, CopyIn, CopyOut
from replicas.block_copier import BlockCopier
from replicas.kernels.select import KernelsUnavailable
from replicas.kv_cache import KvCache
from replicas.memory.host_buffer import HostBuffer
from replicas.model_runner import ModelRunner
from replicas.simulated_runner import SimulatedRunner
from tests.replicas.tiny_models import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    PagedRequest,
    TinyModel,
    batch_of,
    paged_requests,
    random_prompts,
    save_tiny,
)

NUM_SLOTS = 4
PROMPT = random_prompts([18], seed=3)[0]

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ],
    ),
]

blocks = st.integers(0, 5)
slots = st.integers(0, NUM_SLOTS - 1)
moves_of_any_kind = st.lists(
    st.one_of(
        st.builds(CopyBlock, blocks, blocks),
        st.builds(CopyOut, blocks, slots),
        st.builds(CopyIn, slots, blocks),
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return save_tiny(tmp_path_factory.mktemp("tiny"), "llama")


def ignore() -> None:
    """Nobody waits for nearly_done."""


def only_moves(moves: Sequence[BlockMove]) -> Batch:
    none = np.empty(0, dtype=np.int32)
    return Batch(
        step=0,
        token_ids=none.astype(np.int64),
        positions=none.astype(np.int64),
        slot_mapping=none.astype(np.int64),
        query_start=np.zeros(1, dtype=np.int32),
        context_lens=none,
        block_tables=none.reshape(0, 0),
        slots=none,
        samples=(),
        moves=tuple(moves),
    )


def with_host(runner: ModelRunner | SimulatedRunner, num_slots: int = NUM_SLOTS) -> HostBuffer:
    buffer = HostBuffer.create(num_slots=num_slots, slot_bytes=runner.layout.payload_bytes)
    runner.bind_host_buffer(buffer)
    return buffer


def elsewhere(request: PagedRequest) -> PagedRequest:
    """The same request over other blocks."""
    free = [block for block in range(NUM_BLOCKS) if block not in request.blocks]
    return replace(request, blocks=tuple(free[: len(request.blocks)]))


def fill(runner: ModelRunner, request: PagedRequest, end: int) -> None:
    runner.run(batch_of([request.part(0, end)]), ignore)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "bf16", "int8", "fp8"])
def test_blocks_copied_out_and_into_others_give_the_same_logits(
    model: TinyModel, deterministic: bool, kv_cache_dtype: str
) -> None:
    runner = model.runner(
        kernels="reference", deterministic=deterministic, kv_cache_dtype=kv_cache_dtype
    )
    with_host(runner, num_slots=8)
    (request,) = paged_requests([PROMPT])
    fill(runner, request, 17)
    expected = runner.logits(batch_of([request.part(17, 18)]))
    fill(runner, request, 17)
    moved = elsewhere(request)
    out = [CopyOut(block, slot) for slot, block in enumerate(request.blocks)]
    runner.run(only_moves(out), ignore)
    # What lay in the old blocks is overwritten before the new ones are filled.
    fill(runner, replace(request, token_ids=tuple(random_prompts([18], seed=9)[0])), 18)
    runner.run(only_moves([CopyIn(slot, block) for slot, block in enumerate(moved.blocks)]), ignore)
    assert torch.equal(runner.logits(batch_of([moved.part(17, 18)])), expected)


def test_a_copied_block_can_be_written_without_changing_the_other(model: TinyModel) -> None:
    runner = model.runner(kernels="reference")
    (request,) = paged_requests([PROMPT])
    fill(runner, request, 18)
    expected = runner.logits(batch_of([request.part(17, 18)]))
    fork = replace(request, blocks=(*request.blocks[:-1], elsewhere(request).blocks[0]))
    other = replace(fork, token_ids=(*PROMPT[:17], (PROMPT[17] + 1) % 50))
    step = replace(
        batch_of([other.part(17, 18)]), moves=(CopyBlock(request.blocks[-1], fork.blocks[-1]),)
    )
    sampled = runner.run(step, ignore)
    assert sampled.token_ids.tolist() == [model.own_logits(other.token_ids)[-1].argmax().item()]
    assert torch.equal(runner.logits(batch_of([request.part(17, 18)])), expected)


def test_a_slot_holds_the_bytes_that_the_layout_describes(model: TinyModel) -> None:
    runner = model.runner(kernels="reference")
    buffer = with_host(runner)
    layout = runner.layout
    (request,) = paged_requests([PROMPT])
    fill(runner, request, 18)
    runner.run(only_moves([CopyOut(request.blocks[0], 1)]), ignore)
    keys, values = buffer.slots[1].view(np.float32).reshape(2, *layout.shape)
    for layer, cache in enumerate(runner._caches):
        assert np.array_equal(keys[layer], cache.keys[request.blocks[0]].numpy())
        assert np.array_equal(values[layer], cache.values[request.blocks[0]].numpy())
    assert layout.payload_bytes == runner.block_bytes
    assert not buffer.slots[[0, 2, 3]].any()


@pytest.mark.slow
def test_blocks_of_one_back_end_can_be_read_by_another(model: TinyModel) -> None:
    try:
        runners = [model.runner(kernels=kernels) for kernels in ("reference", "cpu")]
    except KernelsUnavailable as error:
        pytest.skip(str(error))
    assert runners[0].layout == runners[1].layout
    (request,) = paged_requests([PROMPT])
    logits = []
    for first, second in (runners, runners[::-1]):
        buffer = with_host(first, num_slots=8)
        second.bind_host_buffer(buffer)
        fill(first, request, 17)
        out = [CopyOut(block, slot) for slot, block in enumerate(request.blocks)]
        first.run(only_moves(out), ignore)
        moved = elsewhere(request)
        back = [CopyIn(slot, block) for slot, block in enumerate(moved.blocks)]
        second.run(only_moves(back), ignore)
        logits.append(second.logits(batch_of([moved.part(17, 18)])))
    own = model.own_logits(PROMPT)[-1:]
    for ours in logits:
        torch.testing.assert_close(ours, own, atol=1e-3, rtol=0)


def test_moves_are_timed_and_a_batch_of_them_alone_samples_nothing(model: TinyModel) -> None:
    runner = model.runner(kernels="reference")
    with_host(runner)
    calls: list[int] = []
    sampled = runner.run(only_moves([CopyOut(0, 0)]), lambda: calls.append(1))
    assert len(sampled.token_ids) == 0
    assert sampled.move_s > 0
    assert calls == [1]
    assert runner.run(only_moves([]), ignore).move_s == 0


def test_a_move_to_host_memory_needs_a_host_buffer(model: TinyModel) -> None:
    with pytest.raises(AssertionError, match="without a host buffer"):
        model.runner(kernels="reference").run(only_moves([CopyOut(0, 0)]), ignore)


def moved_by_the_book(
    held: np.ndarray, host: np.ndarray, moves: Sequence[BlockMove]
) -> tuple[np.ndarray, np.ndarray]:
    held, host = held.copy(), host.copy()
    for move in moves:
        match move:
            case CopyBlock(source, target):
                held[target] = held[source]
            case CopyOut(block, slot):
                host[slot] = held[block]
            case CopyIn(slot, block):
                held[block] = host[slot]
    return held, host


@pytest.mark.parametrize("device", DEVICES)
@given(moves=moves_of_any_kind)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_moves_leave_what_the_same_moves_leave_in_a_list(
    device: str, moves: list[BlockMove]
) -> None:
    layers, count, tail = 2, 6, (3, 2, 5)
    keys = torch.arange(layers * count * 30, dtype=torch.float32, device=device)
    keys = keys.view(layers, count, *tail)
    cache = KvCache(keys.clone(), -keys)
    copier = BlockCopier(cache)
    slot_bytes = 2 * layers * 30 * 4
    buffer = HostBuffer.create(num_slots=NUM_SLOTS, slot_bytes=slot_bytes)
    copier.bind_host_buffer(buffer)
    held = by_block((keys, -keys))
    host = np.zeros((NUM_SLOTS, held.shape[1]), dtype=np.float32)
    expected, expected_host = moved_by_the_book(held, host, moves)
    copier.move(moves)()
    assert np.array_equal(by_block(cache.parts()), expected)
    assert np.array_equal(buffer.slots.view(np.float32), expected_host)
    copier.close()
    buffer.close()


def by_block(parts: Sequence[torch.Tensor]) -> np.ndarray:
    """All numbers of each block, [blocks, numbers], parts one after another."""
    held: np.ndarray = (
        torch.stack(tuple(parts)).transpose(0, 2).transpose(1, 2).flatten(1).cpu().numpy()
    )
    return held


def simulated() -> SimulatedRunner:
    return SimulatedRunner(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_num_seqs=8)


def test_the_simulated_runner_moves_what_its_tokens_depend_on() -> None:
    (request,) = paged_requests([PROMPT])
    moved = elsewhere(request)
    runner = simulated()
    with_host(runner, num_slots=8)
    runner.run(batch_of([request.part(0, 17)]), ignore)
    expected = runner.run(batch_of([request.part(17, 18)]), ignore).token_ids.tolist()
    first, *others = zip(request.blocks, moved.blocks, strict=True)
    moves: list[BlockMove] = [CopyBlock(*first)]
    for slot, (source, target) in enumerate(others):
        moves += [CopyOut(source, slot), CopyIn(slot, target)]
    step = replace(batch_of([moved.part(17, 18)]), moves=tuple(moves))
    assert runner.run(step, ignore).token_ids.tolist() == expected
    runner = simulated()
    with_host(runner, num_slots=8)
    runner.run(batch_of([request.part(0, 17)]), ignore)
    without_last = replace(step, moves=tuple(moves[:-1]))
    assert runner.run(without_last, ignore).token_ids.tolist() != expected


@given(moves=moves_of_any_kind)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_digests_move_as_blocks_do(moves: list[BlockMove]) -> None:
    runner = simulated()
    buffer = with_host(runner)
    held = np.arange(6 * BLOCK_SIZE, dtype=np.uint64).reshape(6, BLOCK_SIZE)
    runner._digests[:6] = held
    host = np.zeros((NUM_SLOTS, BLOCK_SIZE), dtype=np.uint64)
    expected, expected_host = moved_by_the_book(held, host, moves)
    runner.run(only_moves(moves), ignore)
    assert np.array_equal(runner._digests[:6], expected)
    assert np.array_equal(buffer.slots.view(np.uint64), expected_host)
    runner.close()
    buffer.close()
