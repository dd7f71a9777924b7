"""The runner resolves tokens still unknown to the planner, samples, and reports its sizes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from replicas.batch import UNRESOLVED, Batch
from replicas.config import EngineConfig, SchedulerConfig
from replicas.kernels.interface import Kernels
from replicas.kernels.timed import TimedKernels
from replicas.model_runner import ModelRunner
from replicas.request import SamplingParams
from replicas.runner import Pause
from tests.replicas.tiny_models import (
    BLOCK_SIZE,
    PagedRequest,
    Part,
    TinyModel,
    batch_of,
    paged_requests,
    random_prompts,
    save_tiny,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return save_tiny(tmp_path_factory.mktemp("tiny"), "llama")


def ignore() -> None:
    """Nobody waits for nearly_done."""


def grown(request: PagedRequest, token: int) -> PagedRequest:
    return replace(request, token_ids=(*request.token_ids, token))


def unresolved(batch: Batch, *rows: int) -> Batch:
    token_ids = batch.token_ids.copy()
    token_ids[batch.query_start[1:][list(rows)] - 1] = UNRESOLVED
    return replace(batch, token_ids=token_ids)


def test_an_unresolved_token_is_what_its_slot_sampled_last(model: TinyModel) -> None:
    runner = model.runner()
    requests = paged_requests(random_prompts([9, 14, 6]))
    # Slots need not be rows.
    requests = [replace(each, slot=slot) for each, slot in zip(requests, (5, 0, 31), strict=True)]
    first = runner.run(batch_of([each.whole() for each in requests]), ignore).token_ids.tolist()
    known = [grown(each, token) for each, token in zip(requests, first, strict=True)]
    last = [each.part(len(each.token_ids) - 1, len(each.token_ids)) for each in known]
    batch = batch_of([last[2], last[0], last[1]])
    expected = runner.run(batch, ignore).token_ids.tolist()
    # Run again from the first step, now with the tokens left open.
    runner.run(batch_of([each.whole() for each in requests]), ignore)
    assert runner.run(unresolved(batch, 0, 2), ignore).token_ids.tolist() == expected


def test_a_slot_keeps_its_token_while_other_slots_sample(model: TinyModel) -> None:
    runner = model.runner()
    kept, other = paged_requests(random_prompts([8, 8], seed=1))
    (token,) = runner.run(batch_of([kept.whole()]), ignore).token_ids.tolist()
    for end in (3, 8):
        runner.run(batch_of([other.part(0, end)]), ignore)
    part = grown(kept, token).part(8, 9)
    # The ninth token needs a block of its own.
    part = replace(part, request=replace(part.request, blocks=(*kept.blocks, 159)))
    expected = runner.logits(batch_of([part]))
    assert np.array_equal(runner.logits(unresolved(batch_of([part]), 0)), expected)


def test_nearly_done_is_called_once_in_every_run(model: TinyModel) -> None:
    runner = model.runner()
    calls: list[int] = []
    requests = paged_requests(random_prompts([9, 14]))
    for count in (1, 2):
        runner.run(batch_of([requests[0].whole()]), lambda: calls.append(1))
        assert len(calls) == count


def test_each_row_samples_by_its_own_settings(model: TinyModel) -> None:
    runner = model.runner()
    requests = paged_requests(random_prompts([9] * 6))
    warm = SamplingParams(max_tokens=1, temperature=1.5, seed=4)
    parts = [
        Part(each, 0, 9, warm if row % 2 else SamplingParams(max_tokens=1, temperature=0.0))
        for row, each in enumerate(requests)
    ]
    together = runner.run(batch_of(parts), ignore).token_ids
    greedy = runner.logits(batch_of(parts)).argmax(-1).numpy()
    assert np.array_equal(together[::2], greedy[::2])
    assert not np.array_equal(together[1::2], greedy[1::2])


def test_warm_up_leaves_no_token_behind(model: TinyModel) -> None:
    runner = model.runner()
    runner.warm_up()
    (request,) = paged_requests(random_prompts([9]))
    expected = model.own_logits(request.token_ids)[-1].argmax().item()
    assert runner.run(batch_of([request.whole()]), ignore).token_ids.tolist() == [expected]


def test_a_cache_smaller_than_the_budget_can_be_warmed_up(model: TinyModel) -> None:
    runner = model.runner(num_blocks_override=2)
    runner.warm_up()
    assert runner.max_model_len == 2 * BLOCK_SIZE


def test_sizes_and_names_are_reported(model: TinyModel) -> None:
    runner = model.runner(dtype="auto", num_threads=1, kernels="reference")
    assert runner.num_blocks == 160
    assert runner.block_bytes == 2 * 3 * 2 * 8 * BLOCK_SIZE * 4
    assert (runner.dtype_name, runner.kernels_name, runner.num_threads) == (
        "float32",
        "reference",
        1,
    )
    assert runner.max_model_len == 256


def test_timed_kernels_split_a_step_and_change_nothing(model: TinyModel) -> None:
    timed: list[TimedKernels] = []

    def wrap(kernels: Kernels) -> Kernels:
        timed.append(TimedKernels(kernels))
        return timed[-1]

    scheduler = SchedulerConfig(block_size=BLOCK_SIZE, max_model_len=256)
    config = EngineConfig(
        model=model.prepared.folder, scheduler=scheduler, num_blocks_override=160, num_threads=2
    )
    runner = ModelRunner(model.prepared, config, wrap_kernels=wrap)
    (request,) = paged_requests(random_prompts([30]))
    batch = batch_of([request.whole()])
    tokens = runner.run(batch, ignore).token_ids
    assert np.array_equal(tokens, model.runner().run(batch, ignore).token_ids)
    times = timed[0].take()
    # A back end whose layers are one call counts planning with them.
    assert min(times.linear_s, times.attention_s, times.store_s, times.other_s) > 0
    assert times.plan_s >= 0
    assert timed[0].take().total_s == 0


def test_a_runner_can_be_closed_twice(model: TinyModel) -> None:
    runner = model.runner()
    runner.close()
    runner.close()


def test_blocks_of_a_deterministic_replica_have_a_namespace_of_their_own(
    model: TinyModel,
) -> None:
    kinds = [
        model.runner(deterministic=deterministic, kernels=kernels).layout.namespace
        for kernels in ("reference", "cpu")
        for deterministic in (False, True)
    ]
    plain, exact, plain_cpu, exact_cpu = kinds
    assert plain == plain_cpu, "equal up to rounding, and shared"
    assert len({plain, exact, exact_cpu}) == 3


@pytest.mark.parametrize("settings", [{}, {"quantization": "int8"}], ids=["float32", "int8"])
@pytest.mark.parametrize("back_end", ["cpu", "reference"])
def test_a_batch_that_is_run_in_a_pause_changes_nothing(
    tmp_path: Path, back_end: str, settings: dict[str, str]
) -> None:
    """Its rows and those that stand still have the same bits as one after the other."""
    deep = save_tiny(tmp_path, "llama", num_hidden_layers=6)
    paused, usual = (deep.runner(kernels=back_end, **settings) for _ in range(2))
    *outputs, prompt = paged_requests(random_prompts([9, 14, 6, 40]))
    for runner in (paused, usual):
        runner.run(batch_of([each.part(0, len(each.token_ids) - 1) for each in outputs]), ignore)
    first = batch_of([each.part(len(each.token_ids) - 1, len(each.token_ids)) for each in outputs])
    second = batch_of([prompt.whole()])
    expected = [usual.run(batch, ignore).token_ids.tolist() for batch in (first, second)]
    passed: list[list[int]] = []

    def take() -> None:
        if not passed:
            passed.append(paused.run(second, ignore).token_ids.tolist())

    found = paused.run_pausing(first, ignore, wanted_pause(take)).token_ids.tolist()
    assert [found, *passed] == expected
    whole = batch_of([each.part(3, len(each.token_ids)) for each in (*outputs, prompt)])
    assert torch.equal(paused.logits(whole), usual.logits(whole))


@pytest.mark.parametrize("back_end", ["cpu", "reference"])
def test_pauses_come_before_a_step_is_nearly_done(tmp_path: Path, back_end: str) -> None:
    """After each of the first layers, as long as they are wanted."""
    deep = save_tiny(tmp_path, "llama", num_hidden_layers=8)
    (request,) = paged_requests(random_prompts([9]))
    log: list[str] = []
    pause = wanted_pause(lambda: log.append("pause"))
    runner, batch = deep.runner(kernels=back_end), batch_of([request.whole()])
    runner.run_pausing(batch, lambda: log.append("nearly done"), pause)
    assert log == ["pause"] * 6 + ["nearly done"]


def test_a_step_that_is_not_asked_to_stand_still_computes_its_layers_in_one_go(
    tmp_path: Path,
) -> None:
    deep = save_tiny(tmp_path, "llama", num_hidden_layers=8)
    (request,) = paged_requests(random_prompts([9]))
    calls: list[str] = []

    def take() -> None:
        calls.append("pause")
        pause.wanted[0] = 0

    pause = wanted_pause(take)
    runner, batch = deep.runner(kernels="cpu"), batch_of([request.whole()])
    runner.run_pausing(batch, lambda: calls.append("nearly done"), pause)
    assert calls == ["pause", "nearly done"]


def wanted_pause(take: Callable[[], None]) -> Pause:
    return Pause(take, np.ones(1, dtype=np.int32))
