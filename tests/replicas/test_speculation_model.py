"""Guesses verified by a real model: not one token is another, greedy or sampled."""

from dataclasses import replace

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from kvstore.block_hash import root_hash
from replicas.assembly import build_engine
from replicas.config import EngineConfig, SchedulerConfig
from replicas.models.supported import ModelUnavailable
from replicas.request import EngineRequest, SamplingParams
from replicas.speculation.config import SpeculationConfig
from replicas.speculation.draft_model import check_vocabularies
from tests.replicas.engine_harness import entries, run, submit, tokens
from tests.replicas.test_speculation_engine import guessing_always
from tests.replicas.tiny_models import VOCAB, random_prompts, save_tiny

pytestmark = pytest.mark.slow
BLOCK_SIZE = 8
NGRAM = SpeculationConfig(speculative_method="ngram", num_speculative_tokens=5, prompt_lookup_min=1)


@pytest.fixture(scope="module", params=["llama", "mistral_windowed"])
def model(request, tmp_path_factory):
    return with_words(tmp_path_factory.mktemp("tiny"), request.param)


def with_words(folder, family):
    """A tiny model that says what its tokens mean, for those that want to know."""
    tiny = save_tiny(folder, family)
    tiny.prepared.save()
    words = {f"w{index}": index for index in range(VOCAB)}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return tiny.prepared


def served(model, requests, speculation, *, num_blocks=512, **engine):
    config = EngineConfig(
        model=model.folder,
        scheduler=SchedulerConfig(
            block_size=BLOCK_SIZE,
            max_num_seqs=16,
            max_num_batched_tokens=96,
            max_model_len=256,
            watermark=0.0,
            speculation=speculation,
        ),
        deterministic=True,
        num_threads=1,
        num_blocks_override=num_blocks,
        **engine,
    )
    target, _info = build_engine(config)
    submit(target, *requests)
    with guessing_always():
        outputs = run(target)
    target.close()
    return outputs, target


def requests_of(*, count=8, **sampling):
    """Prompts that say something twice, so that there is something to look up."""
    lengths = [3 + (17 * index) % 40 for index in range(count)]
    return [
        EngineRequest(
            f"r{index}",
            (*ids, *ids),
            SamplingParams(max_tokens=40, seed=index, ignore_eos=True, **sampling),
            root=root_hash(fingerprint="tiny", block_size=BLOCK_SIZE),
        )
        for index, ids in enumerate(random_prompts(lengths))
    ]


@pytest.mark.parametrize(
    ("asked", "kernels", "deterministic", "expected"),
    [
        ("auto", "cpu", False, "ngram"),
        ("auto", "reference", True, "ngram"),
        ("auto", "reference", False, "off"),
        ("off", "cpu", False, "off"),
        ("ngram", "reference", False, "ngram"),
    ],
)
def test_guesses_are_made_unasked_only_where_no_bit_depends_on_them(
    model, asked, kernels, deterministic, expected
):
    config = EngineConfig(
        model=model.folder,
        scheduler=SchedulerConfig(max_model_len=64, speculation=SpeculationConfig(asked)),
        kernels=kernels,
        deterministic=deterministic,
        num_threads=1,
        num_blocks_override=32,
    )
    target, _info = build_engine(config)
    assert target.config.speculation.speculative_method == expected
    target.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kernels", ["auto", "reference"])
@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"temperature": 0.1},
        {"temperature": 0.9, "top_p": 0.9, "top_k": 5, "num_logprobs": 2},
    ],
    ids=["greedy", "cool", "filtered"],
)
def test_every_token_is_the_one_that_plain_decoding_gives(model, kernels, dtype, sampling):
    requests = requests_of(**sampling)
    usual, plain = served(model, requests, SpeculationConfig("off"), kernels=kernels, dtype=dtype)
    found, guessing = served(model, requests, NGRAM, kernels=kernels, dtype=dtype)
    assert tokens(found) == tokens(usual)
    assert logprobs(found) == logprobs(usual)
    assert guessing.stats.speculation.num_draft_tokens_total > 100
    if sampling["temperature"] == 0.0:
        assert guessing.stats.step < plain.stats.step


def test_preempted_requests_go_on_with_the_same_tokens(model):
    requests = requests_of(count=12, temperature=0.0)
    usual, _plain = served(model, requests, SpeculationConfig("off"))
    found, crowded = served(model, requests, NGRAM, num_blocks=40)
    assert crowded.stats.preemptions_total > 0
    assert tokens(found) == tokens(usual)


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_a_model_that_guesses_for_itself_is_always_right(model, kernels):
    """Its own K and V then are what the model has, in blocks of the same ids."""
    requests = requests_of(count=6, temperature=0.0)
    usual, plain = served(model, requests, SpeculationConfig("off"), kernels=kernels)
    found, guessing = served(model, requests, draft_by(model), kernels=kernels)
    assert tokens(found) == tokens(usual)
    stats = guessing.stats.speculation
    assert stats.num_accepted_tokens_total == stats.num_draft_tokens_total > 100
    assert guessing.stats.step < plain.stats.step / 2


def test_a_model_that_guesses_badly_changes_no_token(model, tmp_path):
    other = with_words(tmp_path, "qwen3")
    requests = requests_of(count=6, temperature=0.5)
    usual, _plain = served(model, requests, SpeculationConfig("off"))
    found, guessing = served(model, requests, draft_by(other))
    assert tokens(found) == tokens(usual)
    assert guessing.stats.speculation.num_draft_tokens_total > 0


def test_a_small_model_takes_its_share_of_the_memory_for_blocks(model):
    memory = {"num_blocks": 0, "kv_cache_memory_bytes": 1 << 20}
    _outputs, plain = served(model, requests_of(count=1), SpeculationConfig("off"), **memory)
    _outputs, guessing = served(model, requests_of(count=1), draft_by(model), **memory)
    assert guessing.config.num_blocks == plain.config.num_blocks // 2


@pytest.mark.parametrize("difference", ["size", "words"])
def test_a_model_of_another_vocabulary_is_refused_by_name(model, difference, tmp_path):
    words = {f"w{index}": index for index in range(7)}
    usual = _with_vocabulary(model, tmp_path / "usual", words)
    if difference == "words":
        other = _with_vocabulary(model, tmp_path / "other", {**words, "other": 7})
    else:
        other = replace(usual, vocab_size=usual.vocab_size + 1)
    check_vocabularies(usual, usual)
    with pytest.raises(ModelUnavailable, match="speculative_model=tiny.*(tokens|tokenizer)"):
        check_vocabularies(replace(other, name="tiny"), usual)


def draft_by(prepared):
    return SpeculationConfig(
        speculative_method="draft_model",
        speculative_model=prepared.folder,
        num_speculative_tokens=4,
    )


def _with_vocabulary(prepared, folder, words):
    folder.mkdir()
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return replace(prepared, folder=str(folder))


def logprobs(outputs):
    found = {}
    for entry in entries(outputs):
        found.setdefault(entry.request_id, []).extend(entry.logprobs)
    return found
