"""The texts of the measurement repeat where they should, and its row says what was found."""

from replicas.bench.speculation import compare, edits, quotes
from replicas.bench.workload import WorkloadRequest
from replicas.speculation.config import SpeculationConfig
from tests.replicas.engine_harness import engine, prompt
from tests.replicas.test_speculation_engine import NGRAM, VOCAB, guessing_always


def test_every_prompt_ends_with_the_beginning_of_something_that_it_holds():
    for text in (*edits(5), *quotes(5)):
        assert text.count(text[-40:]) == 2


def test_no_two_prompts_are_the_same():
    for texts in (edits, quotes):
        assert len(set(texts(32))) == 32


def test_a_row_says_how_both_engines_did():
    engines = {
        name: engine(vocab_size=VOCAB, speculation=speculation, max_model_len=160)
        for name, speculation in {"off": SpeculationConfig("off"), "ngram": NGRAM}.items()
    }
    requests = [WorkloadRequest(tuple(prompt(9, seed=seed)), 40) for seed in range(3)]
    with guessing_always():
        off, on, ratio, _range, right, per_step = compare(engines, requests, bytes(32)).split(" | ")
    assert float(off) > 0
    assert float(on) > 0
    assert float(ratio) > 0
    assert right.endswith("%")
    assert 1.0 < float(per_step) <= 5.0
