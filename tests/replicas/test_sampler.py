"""Sampling follows vLLM's filters exactly, and no row's token depends on its neighbours."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.batch import SampleSpec
from replicas.counter_random import uniforms
from replicas.request import SamplingParams
from replicas.sampler import Sampler

END = 2


def spec(
    position: int = 0, *, choice: int = 0, forbid_end: bool = False, **params: object
) -> SampleSpec:
    values: dict[str, object] = {"max_tokens": 10, "seed": 17, **params}
    return SampleSpec(0, SamplingParams(**values), choice, position, forbid_end)  # type: ignore[arg-type]


def logits_of(num_rows: int, vocab: int, *, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab, generator=generator) * scale


def sample(logits: torch.Tensor, samples: Sequence[SampleSpec]) -> list[int]:
    sampler = Sampler((END,), vocab_size=logits.shape[1])
    tokens: list[int] = sampler.sample(logits, samples).tolist()
    return tokens


def kept_by_the_book(row: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Probabilities after temperature, min_p, top_k, top_p, one row, in float64."""
    scaled = row.astype(np.float64) / params.temperature
    weights = np.exp(scaled - scaled.max())
    weights[weights < params.min_p] = 0.0
    if params.top_k:
        weights[weights < np.sort(weights)[::-1][min(params.top_k, len(row)) - 1]] = 0.0
    probabilities = weights / weights.sum()
    order = np.argsort(-probabilities, kind="stable")
    before = np.cumsum(probabilities[order]) - probabilities[order]
    if params.top_p < 1.0:
        probabilities[order[before >= params.top_p]] = 0.0
    return probabilities / probabilities.sum()


def chosen_by_the_book(row: np.ndarray, sample: SampleSpec) -> int:
    params = sample.sampling
    probabilities = kept_by_the_book(row, params)
    chance = uniforms([params.seed], [sample.choice], [sample.position])[0]
    cumulated = np.cumsum(probabilities)
    return int(np.searchsorted(cumulated, chance * cumulated[-1], side="right"))


def test_greedy_takes_the_largest_logit() -> None:
    logits = logits_of(9, 500)
    assert sample(logits, [spec(temperature=0.0)] * 9) == logits.argmax(-1).tolist()


def test_greedy_takes_the_first_of_equal_logits_wherever_the_row_stands() -> None:
    logits = torch.zeros(33, 1000)
    logits[:, 400:] = 1.0
    assert sample(logits, [spec(temperature=0.0)] * 33) == [400] * 33


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.7},
        {"temperature": 1.8},
        {"top_k": 5},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
        {"top_k": 1},
        {"top_p": 1e-6},
        {"top_k": 10_000},
        # Nearly everything is kept.
        {"temperature": 5.0, "top_p": 0.99},
        {"temperature": 5.0, "top_k": 2000},
    ],
    ids=str,
)
@pytest.mark.parametrize("vocab", [50, 3000])
def test_tokens_are_those_of_a_simple_row_by_row_sampler(
    params: dict[str, float], vocab: int
) -> None:
    logits = logits_of(400, vocab)
    samples = [spec(position, **params) for position in range(400)]
    expected = [
        chosen_by_the_book(row, each) for row, each in zip(logits.numpy(), samples, strict=True)
    ]
    assert sample(logits, samples) == expected


@pytest.mark.parametrize("params", [{"top_k": 7}, {"top_p": 0.5}, {"min_p": 0.9}, {"top_k": 1500}])
def test_equal_logits_are_kept_or_cut_as_the_book_says(params: dict[str, float]) -> None:
    # Like bfloat16 logits: few different values.
    logits = logits_of(60, 4000).round()
    samples = [spec(position, **params) for position in range(60)]
    expected = [
        chosen_by_the_book(row, each) for row, each in zip(logits.numpy(), samples, strict=True)
    ]
    assert sample(logits, samples) == expected


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.5}, {"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.1}], ids=str
)
def test_draws_follow_the_kept_probabilities(params: dict[str, float]) -> None:
    count, vocab = 20_000, 12
    row = logits_of(1, vocab, scale=1.0)
    samples = [spec(position, **params) for position in range(count)]
    tokens = sample(row.expand(count, -1), samples)
    values = {"temperature": 1.0, **params}
    expected = count * kept_by_the_book(row[0].numpy(), spec(**values).sampling)
    counts = np.bincount(tokens, minlength=vocab)
    assert counts[expected == 0].sum() == 0
    possible = expected > 0
    square = ((counts - expected) ** 2)[possible] / expected[possible]
    # 11 degrees of freedom at most: 31 is passed by chance once in a thousand.
    assert square.sum() < 31


@given(data=st.data())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_rows_token_does_not_depend_on_its_neighbours(data: st.DataObject) -> None:
    logits = logits_of(12, 2500, seed=data.draw(st.integers(0, 50)))
    params = st.builds(
        SamplingParams,
        max_tokens=st.just(10),
        temperature=st.sampled_from([0.0, 0.3, 1.0, 4.0]),
        top_p=st.sampled_from([1.0, 0.9, 0.99]),
        top_k=st.sampled_from([0, 3, 1200]),
        min_p=st.sampled_from([0.0, 0.05]),
        seed=st.integers(0, 2**64 - 1),
    )
    samples = [
        SampleSpec(0, data.draw(params), 0, position, data.draw(st.booleans()))
        for position in range(12)
    ]
    together = sample(logits, samples)
    rows = data.draw(st.lists(st.integers(0, 11), min_size=1, unique=True))
    apart = sample(logits[rows], [samples[row] for row in rows])
    assert apart == [together[row] for row in rows]


def test_the_same_seed_repeats_and_choices_differ() -> None:
    logits = logits_of(1, 800, scale=0.5).expand(6, -1)
    samples = [spec(5, choice=choice) for choice in range(6)]
    first, again = sample(logits, samples), sample(logits, samples)
    assert first == again
    assert len(set(first)) > 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forbidden_ends_are_never_sampled(temperature: float) -> None:
    logits = torch.zeros(50, 20)
    logits[:, END] = 30.0
    logits[:, 9] = 20.0
    stops = spec(temperature=temperature).sampling
    stops = replace(stops, stop_token_ids=(9,))
    free = [SampleSpec(0, stops, 0, position) for position in range(50)]
    bound = [SampleSpec(0, stops, 0, position, forbid_end=True) for position in range(50)]
    assert sample(logits, free) == [END] * 50
    assert not {END, 9} & set(sample(logits, bound))


def test_the_callers_logits_are_left_alone() -> None:
    logits = logits_of(3, 40)
    before = logits.clone()
    sample(logits, [spec(forbid_end=True), spec(min_p=0.3), spec(temperature=0.2, top_k=2)])
    assert torch.equal(logits, before)


def test_bfloat16_logits_are_sampled_in_float32() -> None:
    logits = logits_of(200, 300).bfloat16()
    samples = [spec(position, top_p=0.9) for position in range(200)]
    assert sample(logits, samples) == sample(logits.float(), samples)


def test_tiny_temperatures_are_greedy_and_huge_logits_do_not_overflow() -> None:
    logits = logits_of(4, 100, scale=1e4)
    expected = logits.argmax(-1).tolist()
    assert sample(logits, [spec(temperature=1e-8)] * 4) == expected
    assert sample(logits, [spec(temperature=1e-3)] * 4) == expected


@pytest.mark.parametrize(
    "params", [{}, {"top_p": 0.9}, {"top_k": 3}, {"temperature": 0.0}], ids=str
)
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_row_without_sense_ends_in_a_token_and_spoils_no_other(
    params: dict[str, float], broken: float
) -> None:
    logits = logits_of(3, 500)
    samples = [spec(position, **params) for position in range(3)]
    expected = sample(logits, samples)
    logits[1] = broken
    for rows in ([0, 1, 2], [1]):
        tokens = sample(logits[rows], [samples[row] for row in rows])
        assert all(0 <= token < 500 for token in tokens)
    assert sample(logits, samples)[::2] == expected[::2]
