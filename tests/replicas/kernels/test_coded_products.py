"""Products of codes are exact sums, the same bits in every batch and for any number of threads."""

from collections.abc import Iterator

import pytest
import torch

from replicas.kernels.fused import CodedProducts
from replicas.kernels.interface import Kernels, PackedWeight
from replicas.quantization.activation_codes import GROUP, as_coded
from replicas.quantization.weight_codes import WeightCodes, weight_codes
from tests.replicas.kernels.back_ends import BACK_ENDS, DTYPES, NotHere, make
from tests.replicas.kernels.test_contract import assert_near, noise

# The compiled back end may have to be built first.
pytestmark = pytest.mark.slow

SHAPES = [(96, 64), (70, 34), (33, 7), (1, 128), (64, 200), (960, 576)]
NUM_ROWS = [1, 2, 3, 5, 6, 7, 11, 12, 13, 16, 17, 25, 48, 200]


@pytest.fixture(params=BACK_ENDS)
def back_end(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def kernels_of(back_end: str, dtype: torch.dtype) -> Kernels:
    try:
        return make(back_end, dtype)
    except NotHere as reason:
        pytest.skip(str(reason))


def packed(kernels: Kernels, weight: WeightCodes, bias: torch.Tensor | None = None) -> PackedWeight:
    assert isinstance(kernels, CodedProducts)
    return kernels.pack_codes(weight, bias)


@pytest.fixture
def threads() -> Iterator[None]:
    """The number of threads that was set before is set again."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("out", "width"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_a_product_is_that_of_what_the_codes_stand_for(
    back_end: str, dtype: torch.dtype, out: int, width: int
) -> None:
    kernels = kernels_of(back_end, dtype)
    weight, bias = weight_codes(noise(out, width)), noise(out, seed=1).to(dtype)
    layer = packed(kernels, weight, bias)
    for num_rows in NUM_ROWS:
        x = (noise(num_rows, width, seed=2) * 3).to(dtype)
        result = kernels.linear(x, layer)
        assert result.dtype is dtype
        exact = as_coded(x).double() @ weight.numbers().double().T + bias.double()
        assert_near(result, exact, dtype)


@pytest.mark.parametrize(("out", "width"), SHAPES)
def test_whole_numbers_give_whole_sums(back_end: str, out: int, width: int) -> None:
    kernels = kernels_of(back_end, torch.float32)
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(-127, 128, (out, width), generator=generator, dtype=torch.int8)
    x = torch.randint(-127, 128, (30, width), generator=generator).float()
    # The largest number of every group is 127, so that its scale is 1.
    x[:, ::GROUP] = 127.0
    result = kernels.linear(x, packed(kernels, WeightCodes(codes, torch.ones(out))))
    assert torch.equal(result.long(), x.long() @ codes.long().T)


def test_the_largest_codes_do_not_overflow(back_end: str) -> None:
    kernels = kernels_of(back_end, torch.float32)
    for sign in (-1, 1):
        codes = WeightCodes(torch.full((32, 256), sign * 127, dtype=torch.int8), torch.ones(32))
        result = kernels.linear(torch.full((9, 256), 127.0), packed(kernels, codes))
        assert torch.equal(result, torch.full((9, 32), sign * 127.0 * 127 * 256))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize(("out", "width"), [(960, 576), (576, 1536), (70, 33)])
def test_a_row_has_the_same_bits_at_every_batch_size(
    back_end: str, dtype: torch.dtype, out: int, width: int
) -> None:
    kernels = kernels_of(back_end, dtype)
    if not kernels.deterministic:
        pytest.skip("not promised")
    layer = packed(kernels, weight_codes(noise(out, width)), noise(out, seed=1).to(dtype))
    x = noise(300, width, seed=2).to(dtype)
    whole = kernels.linear(x, layer)
    for num_rows in (1, 2, 3, 6, 7, 8, 12, 13, 31, 65, 200, 299):
        start = 300 - num_rows
        assert torch.equal(kernels.linear(x[start:], layer), whole[start:])


@pytest.mark.usefixtures("threads")
def test_a_product_has_the_same_bits_for_any_number_of_threads(back_end: str) -> None:
    kernels = kernels_of(back_end, torch.bfloat16)
    if not kernels.deterministic:
        pytest.skip("not promised")
    layer = packed(kernels, weight_codes(noise(300, 576)))
    x = noise(40, 576, seed=2).bfloat16()
    results = []
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        results.append(kernels.linear(x, layer))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_every_instruction_set_makes_the_codes_of_the_reference() -> None:
    # One input of one, so that the product shows each code; sizes over many powers of two.
    x = noise(64, 64) * torch.logspace(-8, 8, 64)[:, None]
    weight = WeightCodes(torch.eye(64, dtype=torch.int8), torch.ones(64))
    expected = as_coded(x)
    for name in BACK_ENDS:
        try:
            kernels = make(name, torch.float32)
        except NotHere:
            continue
        assert torch.equal(kernels.linear(x, packed(kernels, weight)), expected), name


def test_a_row_that_is_not_finite_spoils_no_other(back_end: str) -> None:
    kernels = kernels_of(back_end, torch.bfloat16)
    layer = packed(kernels, weight_codes(noise(40, 130)))
    x = noise(20, 130, seed=2).bfloat16()
    clean = kernels.linear(x, layer)
    x[3, 128], x[17, 0] = float("nan"), float("inf")
    result = kernels.linear(x, layer)
    is_finite = result.isfinite().all(-1)
    assert [row for row in range(20) if not is_finite[row]] == [3, 17]
    assert torch.equal(result[is_finite], clean[is_finite])


def test_a_product_without_rows_is_empty(back_end: str) -> None:
    kernels = kernels_of(back_end, torch.float32)
    layer = packed(kernels, weight_codes(noise(32, 16)))
    assert kernels.linear(torch.empty(0, 16), layer).shape == (0, 32)
