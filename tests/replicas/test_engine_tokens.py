"""The engine with a real model: in deterministic mode nobody's tokens depend on anybody else."""

import time

import pytest

from kvstore.block_hash import root_hash
from replicas.assembly import build_engine
from replicas.config import EngineConfig, SchedulerConfig
from replicas.engine_commands import Submit
from replicas.request import EngineRequest, SamplingParams
from tests.replicas.engine_harness import run, tokens
from tests.replicas.tiny_models import random_prompts, save_tiny

pytestmark = pytest.mark.slow
BLOCK_SIZE = 8
NUM_REQUESTS = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    tiny = save_tiny(tmp_path_factory.mktemp("tiny"), "llama")
    tiny.prepared.save()
    return tiny.prepared


def engine_of(model, *, dtype="float32", num_blocks=2048, **scheduler):
    values = {
        "block_size": BLOCK_SIZE,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 64,
        "max_model_len": 256,
    }
    config = EngineConfig(
        model=model.folder,
        scheduler=SchedulerConfig(**{**values, **scheduler}),
        dtype=dtype,
        deterministic=True,
        num_threads=1,
        num_blocks_override=num_blocks,
    )
    return build_engine(config)[0]


def requests_of(*, greedy, count=NUM_REQUESTS, max_tokens=12):
    lengths = [3 + (17 * index) % 60 for index in range(count)]
    return [
        EngineRequest(
            f"r{index}",
            tuple(ids),
            SamplingParams(
                max_tokens=max_tokens,
                temperature=0.0 if greedy else 0.9,
                top_p=1.0 if greedy else 0.95,
                seed=index,
                ignore_eos=True,
            ),
            root=root_hash(fingerprint="tiny", block_size=BLOCK_SIZE),
        )
        for index, ids in enumerate(random_prompts(lengths))
    ]


def served(engine, requests):
    for request in requests:
        engine.inbox.put(Submit(request))
    return tokens(run(engine))


def one_at_a_time(model, requests, **settings):
    engine = engine_of(model, enable_prefix_caching=False, async_scheduling=False, **settings)
    found = {}
    for request in requests:
        found |= served(engine, [request])
    engine.close()
    return found


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "seeded"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_many_requests_at_once_get_the_tokens_of_one_at_a_time(model, greedy, dtype):
    requests = requests_of(greedy=greedy)
    together = engine_of(model, dtype=dtype, async_scheduling=True)
    assert served(together, requests) == one_at_a_time(model, requests, dtype=dtype)
    together.close()


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "seeded"])
def test_preempted_requests_go_on_with_the_tokens_they_would_have_had(model, greedy):
    requests = requests_of(greedy=greedy, count=24, max_tokens=40)
    crowded = engine_of(model, num_blocks=40, async_scheduling=True, watermark=0.0)
    found = served(crowded, requests)
    assert crowded.stats.preemptions_total > 0
    assert found == one_at_a_time(model, requests)
    crowded.close()


def test_chunks_of_any_size_give_the_same_tokens(model):
    requests = requests_of(greedy=False, count=16)
    usual = one_at_a_time(model, requests)
    for chunk in (1, 7, 33):
        engine = engine_of(model, long_prefill_token_threshold=chunk)
        assert served(engine, requests) == usual
        engine.close()


def test_a_request_that_moves_here_goes_on_with_the_tokens_it_would_have_had(model):
    (request,) = requests_of(greedy=False, count=1, max_tokens=30)
    usual = one_at_a_time(model, [request])["r0", 0]
    engine = engine_of(model)
    moved = EngineRequest(
        "r0",
        request.prompt_token_ids,
        request.sampling,
        root=request.root,
        attempt=1,
        emitted_token_ids=tuple(usual[:11]),
    )
    engine.inbox.put(Submit(moved))
    rest = [
        token for output in run(engine) for entry in output.entries for token in entry.token_ids
    ]
    assert rest == usual[11:]
    engine.close()


def test_sampled_choices_of_one_request_differ_and_repeat_with_the_seed(model):
    request = EngineRequest(
        "r",
        tuple(random_prompts([20])[0]),
        SamplingParams(max_tokens=12, temperature=1.0, seed=7, ignore_eos=True),
        root=bytes(32),
        num_choices=4,
    )
    first, second = (served(engine_of(model), [request]) for _ in range(2))
    assert first == second
    assert len({tuple(ids) for ids in first.values()}) == 4


@pytest.mark.parametrize("num_prompt", [20, 24])
def test_forked_choices_get_the_tokens_of_choices_that_run_one_at_a_time(model, num_prompt):
    request = EngineRequest(
        "r",
        tuple(random_prompts([num_prompt])[0]),
        SamplingParams(max_tokens=20, temperature=1.0, seed=7, ignore_eos=True),
        root=bytes(32),
        num_choices=6,
    )
    forking = engine_of(model)
    found = served(forking, [request])
    assert forking.stats.forks_total == forking.stats.copied_blocks_total == 5
    assert found == served(engine_of(model, max_num_seqs=1), [request])


def test_start_up_says_what_the_engine_turned_out_to_be(model):
    phases = []
    _engine, info = build_engine(
        EngineConfig(model=model.folder, num_blocks_override=64, num_threads=1),
        on_phase=lambda name, seconds: phases.append((name, seconds)),
    )
    assert info.num_blocks == 64
    assert info.max_model_len <= 64 * info.block_size
    assert [name for name, _seconds in phases] == ["import", "load", "warm_up"]
    assert all(0 <= seconds < time.monotonic() for _name, seconds in phases)
