"""Lengths are scaled first, then capped, and always leave room for one token."""

import pytest

from loadtest.datasets import LengthShaping
from loadtest.program import Call


def test_scaling_comes_before_the_caps() -> None:
    shaping = LengthShaping(input_scale=0.5, max_input_tokens=300)
    assert [shaping.input_tokens(n) for n in (1, 400, 4000)] == [1, 200, 300]


def test_prompt_and_output_fit_the_context_together() -> None:
    shaping = LengthShaping(max_total_tokens=1000)
    output = shaping.output_tokens(400)
    assert output == 400
    assert shaping.input_tokens(5000, output_tokens=output) == 600


def test_an_output_longer_than_the_context_leaves_one_prompt_token() -> None:
    shaping = LengthShaping(max_total_tokens=100)
    output = shaping.output_tokens(5000)
    assert (output, shaping.input_tokens(50, output_tokens=output)) == (99, 1)


def test_a_fixed_output_replaces_the_trace() -> None:
    assert LengthShaping(fixed_output_tokens=16).output_tokens(400) == 16
    assert LengthShaping(fixed_output_tokens=16).output_tokens(None) == 16


def test_given_text_that_is_too_long_does_not_fit() -> None:
    shaping = LengthShaping(max_total_tokens=100)
    assert shaping.fits(Call(("x",), 50, 50))
    assert not shaping.fits(Call(("x",), 50, 51))


def test_a_scale_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="input_scale=0"):
        LengthShaping(input_scale=0)
