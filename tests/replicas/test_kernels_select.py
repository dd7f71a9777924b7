"""A back end is chosen once, and one that cannot run says why."""

import logging
import sys
from types import ModuleType

import pytest
import torch

from replicas.kernels.reference.backend import ReferenceKernels
from replicas.kernels.select import SEATS, KernelsUnavailable, Seat, select_kernels

REFERENCE = SEATS["reference"]


@pytest.fixture
def broken_seat(monkeypatch: pytest.MonkeyPatch) -> Seat:
    """A back end that is there but finds no compiler."""
    module = ModuleType("broken_kernels")
    module.__spec__ = SEATS_SPEC

    def load(dtype: torch.dtype, *, deterministic: bool) -> ReferenceKernels:
        raise KernelsUnavailable("no compiler")

    module.load = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "broken_kernels", module)
    return Seat("broken_kernels")


SEATS_SPEC = sys.modules["replicas.kernels.select"].__spec__


def test_auto_takes_the_first_that_loads_and_says_why_others_did_not(
    broken_seat: Seat, caplog: pytest.LogCaptureFixture
) -> None:
    seats = {"broken": broken_seat, "reference": REFERENCE}
    with caplog.at_level(logging.INFO, logger="replicas.kernels.select"):
        kernels = select_kernels("auto", torch.float32, deterministic=False, seats=seats)
    assert kernels.name == "reference"
    reasons = [record for record in caplog.records if "no compiler" in record.getMessage()]
    assert len(reasons) == 1


def test_a_back_end_asked_for_by_name_is_not_replaced(broken_seat: Seat) -> None:
    seats = {"broken": broken_seat, "reference": REFERENCE}
    with pytest.raises(KernelsUnavailable, match="no compiler"):
        select_kernels("broken", torch.float32, deterministic=False, seats=seats)


def test_auto_passes_over_a_back_end_without_the_cache_that_was_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seats = {"plain": Seat(REFERENCE.module), "reference": REFERENCE}
    with caplog.at_level(logging.INFO, logger="replicas.kernels.select"):
        select_kernels(
            "auto", torch.bfloat16, deterministic=False, cache_dtype=torch.int8, seats=seats
        )
    assert "kernels=plain: has no KV cache of torch.int8 beside torch.bfloat16" in caplog.text
    assert "chosen name=reference" in caplog.text


def test_a_named_back_end_without_the_cache_that_was_asked_for_is_an_error() -> None:
    seats = {"plain": Seat(REFERENCE.module)}
    with pytest.raises(KernelsUnavailable, match="has no KV cache of torch.bfloat16"):
        select_kernels(
            "plain", torch.float32, deterministic=False, cache_dtype=torch.bfloat16, seats=seats
        )


def test_auto_passes_over_a_back_end_without_the_codes_that_were_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seats = {"plain": Seat(REFERENCE.module), "reference": REFERENCE}
    with caplog.at_level(logging.INFO, logger="replicas.kernels.select"):
        select_kernels(
            "auto", torch.bfloat16, deterministic=False, quantization="int8", seats=seats
        )
    assert "kernels=plain: has no quantization=int8" in caplog.text
    assert "chosen name=reference" in caplog.text


def test_a_named_back_end_without_codes_is_an_error() -> None:
    seats = {"plain": Seat(REFERENCE.module)}
    with pytest.raises(KernelsUnavailable, match="kernels=plain: has no quantization=int8"):
        select_kernels(
            "plain", torch.bfloat16, deterministic=False, quantization="int8", seats=seats
        )


def test_a_back_end_that_this_version_lacks_is_a_clear_error() -> None:
    seats = {"absent": Seat("replicas.kernels.absent"), "reference": REFERENCE}
    with pytest.raises(KernelsUnavailable, match="kernels=absent: this version has no such"):
        select_kernels("absent", torch.float32, deterministic=False, seats=seats)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(KernelsUnavailable, match="expected auto or one of triton, cpu, reference"):
        select_kernels("fast", torch.float32, deterministic=False)


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_reference_back_end_is_deterministic_on_request(deterministic: bool) -> None:
    kernels = select_kernels("reference", torch.bfloat16, deterministic=deterministic)
    assert kernels.deterministic is deterministic
