"""Beam search with a real model finds what transformers' own generate finds."""

import pytest
import torch

from kvstore.block_hash import root_hash
from replicas.assembly import build_engine
from replicas.config import EngineConfig, SchedulerConfig
from replicas.engine_commands import Submit
from replicas.request import BeamSearch, EngineRequest, SamplingParams
from tests.replicas.engine_harness import entries, run
from tests.replicas.tiny_models import random_prompts, save_tiny

pytestmark = pytest.mark.slow
BLOCK_SIZE = 8
MAX_TOKENS = 24


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    made = save_tiny(tmp_path_factory.mktemp("tiny"), "llama")
    made.prepared.save()
    return made


def engine_of(tiny, *, num_blocks=512, is_async=True):
    config = EngineConfig(
        model=tiny.prepared.folder,
        scheduler=SchedulerConfig(
            block_size=BLOCK_SIZE,
            max_num_seqs=16,
            max_num_batched_tokens=64,
            max_model_len=256,
            async_scheduling=is_async,
            watermark=0.0,
        ),
        dtype="float32",
        kernels="reference",
        deterministic=True,
        num_threads=1,
        num_blocks_override=num_blocks,
    )
    return build_engine(config)[0]


def searched(engine, prompt, search, *, width):
    engine.inbox.put(
        Submit(
            EngineRequest(
                "r",
                tuple(prompt),
                SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, beam=search),
                root=root_hash(fingerprint="tiny", block_size=BLOCK_SIZE),
                num_choices=width,
            )
        )
    )
    ends = [entry for entry in entries(run(engine)) if entry.finish_reason is not None]
    stops = [() if one.stop_token_id is None else (one.stop_token_id,) for one in ends]
    engine.close()
    return [[*one.token_ids, *stop] for one, stop in zip(ends, stops, strict=True)]


def generated(tiny, prompt, search, *, width):
    (end,) = tiny.prepared.eos_token_ids
    with torch.no_grad():
        found = tiny.own.generate(
            torch.tensor([prompt]),
            # Or a prompt's zeros would be taken for padding.
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=width,
            num_return_sequences=width,
            do_sample=False,
            max_new_tokens=MAX_TOKENS,
            length_penalty=search.length_penalty,
            early_stopping=search.early_stopping,
            eos_token_id=end,
            pad_token_id=0,
        )
    outputs = []
    for row in found[:, len(prompt) :].tolist():
        outputs.append(row[: row.index(end) + 1] if end in row else row)
    return outputs


@pytest.mark.parametrize("width", [2, 5])
@pytest.mark.parametrize(
    "search", [BeamSearch(), BeamSearch(0.0), BeamSearch(2.0, early_stopping=True)], ids=repr
)
def test_the_outputs_are_those_of_transformers(tiny, search, width):
    for prompt in random_prompts([3, 40], seed=width):
        found = searched(engine_of(tiny), prompt, search, width=width)
        # Padding after a short output looks like tokens where no end token was found.
        expected = generated(tiny, prompt, search, width=width)
        assert found == [row[: len(one)] for row, one in zip(expected, found, strict=True)]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_search_that_is_preempted_finds_the_same(tiny, is_async):
    (prompt,) = random_prompts([41])
    usual = searched(engine_of(tiny), prompt, BeamSearch(), width=5)
    crowded = engine_of(tiny, num_blocks=11, is_async=is_async)
    assert searched(crowded, prompt, BeamSearch(), width=5) == usual
    assert crowded.stats.preemptions_total > 0
