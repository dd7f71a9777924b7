"""Log-probabilities are the model's own, for whoever asked, whatever the neighbours ask."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.batch import UNRESOLVED, Sampled, SampleSpec
from replicas.logprobs import with_logprobs
from replicas.request import SamplingParams
from replicas.row_runs import top_columns


def asking(*counts: int | None) -> list[SampleSpec]:
    params = [SamplingParams(max_tokens=1, num_logprobs=count) for count in counts]
    return [SampleSpec(row, each, choice=0, position=5) for row, each in enumerate(params)]


def logits_of(num_rows: int, vocab: int, *, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab, generator=generator) * 4


def result(logits: torch.Tensor, *counts: int | None) -> Sampled:
    tokens = torch.arange(len(counts)) * 3
    return with_logprobs(tokens, logits, asking(*counts))


def tops(sampled: Sampled) -> tuple[np.ndarray, np.ndarray]:
    assert sampled.top_ids is not None
    assert sampled.top_logprobs is not None
    return sampled.top_ids, sampled.top_logprobs


def test_nothing_is_computed_when_nobody_asks() -> None:
    sampled = with_logprobs(torch.tensor([4, 2]), torch.empty(0), asking(None, None))
    assert sampled.token_ids.tolist() == [4, 2]
    assert sampled.logprobs is None
    assert sampled.top_ids is None


def test_zero_asks_for_the_sampled_token_alone() -> None:
    logits = logits_of(3, 100)
    sampled = result(logits, 0, 0, 0)
    expected = torch.log_softmax(logits.double(), -1)[range(3), [0, 3, 6]]
    assert sampled.logprobs is not None
    np.testing.assert_allclose(sampled.logprobs, expected.numpy(), atol=2e-6)
    assert sampled.top_ids is None


@pytest.mark.parametrize("vocab", [5, 64, 100, 3000])
def test_the_likeliest_tokens_come_in_order(vocab: int) -> None:
    logits = logits_of(2, vocab)
    ids, values = tops(with_logprobs(torch.tensor([0, 1]), logits, asking(5, 5)))
    expected = torch.log_softmax(logits.double(), -1).topk(5)
    assert np.array_equal(ids, expected.indices.numpy())
    np.testing.assert_allclose(values, expected.values.numpy(), atol=2e-6)


def test_more_than_the_vocabulary_gives_all_of_it() -> None:
    ids, _values = tops(result(logits_of(1, 7), 20))
    assert sorted(ids[0].tolist()) == list(range(7))


def test_a_row_that_did_not_ask_holds_nothing() -> None:
    sampled = result(logits_of(3, 100), None, 2, 0)
    ids, values = tops(sampled)
    assert sampled.logprobs is not None
    assert np.isnan(sampled.logprobs).tolist() == [True, False, False]
    assert ids[0].tolist() == [UNRESOLVED] * 2
    assert np.isnan(values[0]).all()
    assert not np.isnan(values[1]).any()


def test_forbidding_and_heating_do_not_change_them() -> None:
    logits = logits_of(1, 50)
    hot = SamplingParams(max_tokens=3, min_tokens=2, temperature=9.0, top_k=1, num_logprobs=3)
    plain = SamplingParams(max_tokens=3, num_logprobs=3)
    pairs = [
        with_logprobs(torch.tensor([7]), logits, [SampleSpec(0, params, 0, 1, forbid_end=forbid)])
        for params, forbid in ((hot, True), (plain, False))
    ]
    assert pairs[0].logprobs == pairs[1].logprobs
    assert np.array_equal(tops(pairs[0])[1], tops(pairs[1])[1])


@given(
    counts=st.lists(st.sampled_from([None, 0, 1, 8]), min_size=2, max_size=9),
    seed=st.integers(0, 20),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_rows_bits_do_not_depend_on_its_neighbours(
    counts: Sequence[int | None], seed: int, dtype: torch.dtype
) -> None:
    logits = logits_of(len(counts), 1000, seed=seed).to(dtype)
    together = result(logits, *counts)
    for row, count in enumerate(counts):
        if count is None:
            continue
        alone = with_logprobs(torch.tensor([row * 3]), logits[row : row + 1], asking(count))
        assert together.logprobs is not None
        assert alone.logprobs is not None
        assert together.logprobs[row] == alone.logprobs[0]
        if count:
            for own, among in zip(tops(alone), tops(together), strict=True):
                assert np.array_equal(own[0], among[row, :count])


@given(
    rows=st.lists(st.lists(st.integers(-3, 3), min_size=150, max_size=150), min_size=1, max_size=3),
    count=st.integers(1, 30),
)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_of_equal_values_the_first_columns_are_taken(rows: list[list[int]], count: int) -> None:
    values = np.array(rows, dtype=np.float32)
    # Both zeros are equal.
    values[:, ::2] *= -1.0
    expected = np.argsort(-values, axis=1, kind="stable")[:, :count]
    assert np.array_equal(top_columns(torch.from_numpy(values), count).numpy(), expected)


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ValueError, match="num_logprobs=-1: expected 0 or more"):
        SamplingParams(max_tokens=1, num_logprobs=-1)
