"""Prompts that pass outputs in a real model: not one token is another."""

import random
import threading
import time

import pytest

from kvstore.block_hash import root_hash
from replicas.assembly import build_engine
from replicas.config import EngineConfig, SchedulerConfig
from replicas.request import EngineRequest, SamplingParams
from replicas.speculation.config import SpeculationConfig
from tests.replicas.engine_harness import run, submit, tokens
from tests.replicas.tiny_models import random_prompts, save_tiny

pytestmark = pytest.mark.slow
BLOCK_SIZE = 8


def served(model, requests, *, kernels, method, passing, seed=0):
    """Their tokens when they come one by one while others are computed; how many passed."""
    config = EngineConfig(
        model=model.prepared.folder,
        scheduler=SchedulerConfig(
            block_size=BLOCK_SIZE,
            max_num_seqs=16,
            max_num_batched_tokens=96,
            max_prefill_tokens=12,
            max_model_len=256,
            prefill_overtakes_decode=passing,
            speculation=SpeculationConfig(speculative_method=method, prompt_lookup_min=1),
        ),
        kernels=kernels,
        deterministic=True,
        num_threads=2,
        num_blocks_override=256,
    )
    engine, _info = build_engine(config)
    waits = random.Random(seed)

    def come():
        for one in requests:
            # Slow enough that few wait at a time: many do not pass.
            time.sleep(waits.uniform(0.0, 0.02))
            submit(engine, one)
        is_all.set()

    is_all = threading.Event()
    clients = threading.Thread(target=come)
    clients.start()
    outputs = []
    while not is_all.is_set() or engine.has_work or engine.inbox.wait(0):
        outputs += run(engine)
    clients.join()
    engine.close()
    return tokens(outputs), outputs[-1].stats.overtaking_prefills_total


@pytest.mark.parametrize("method", ["off", "ngram"])
@pytest.mark.parametrize("kernels", ["cpu", "reference"])
def test_every_request_gets_the_tokens_that_it_gets_without(tmp_path, kernels, method):
    model = save_tiny(tmp_path, "llama", num_hidden_layers=8)
    model.prepared.save()
    lengths = [2 + (23 * index) % 50 for index in range(40)]
    requests = [
        EngineRequest(
            f"r{index}",
            (*ids, *ids),
            SamplingParams(max_tokens=30, seed=index, ignore_eos=True, temperature=index % 2),
            root=root_hash(fingerprint="tiny", block_size=BLOCK_SIZE),
        )
        for index, ids in enumerate(random_prompts(lengths))
    ]
    usual, num_passed = served(model, requests, kernels=kernels, method=method, passing=False)
    assert num_passed == 0
    assert len(usual) == len(requests)
    num_passed = 0
    for seed in range(3):
        found, passed = served(
            model, requests, kernels=kernels, method=method, passing=True, seed=seed
        )
        num_passed += passed
        assert found == usual
    assert num_passed > 0
