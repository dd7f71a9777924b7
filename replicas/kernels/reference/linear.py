"""Linear layers through oneDNN with weights laid out once, fast or with fixed row tiles."""

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F

# A batch size that the weight layout is chosen for. On AVX-512 one layout serves every size from
# 4 rows up; with 1 row bfloat16 falls into a slow path (twice the time of 4 rows, measured).
_LAYOUT_ROWS = 32
_LEAST_ROWS = 4

# Row tiles of deterministic mode, smallest first.
TILES = (8, 16, 32, 64, 128, 256, 512)
# A tile is not proved, and so not used, where its output would be larger than this.
_PROOF_ELEMENTS = 1 << 24


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight [out, in] as oneDNN wants it (or plain), its bias, and the row tiles proved for it.

    tiles is empty outside deterministic mode. is_coded: the weight is the float32 that codes stand
    for, and so must the activations be.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    out_features: int
    is_reordered: bool
    tiles: tuple[int, ...] = ()
    is_coded: bool = False


def pack(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
    """Lay out weight [out, in] for `multiply`."""
    reordered = _has_onednn(weight.dtype)
    packed = (
        torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _LAYOUT_ROWS)
        if reordered
        else weight.contiguous()
    )
    return PackedLinear(packed, bias, weight.shape[0], reordered)


def multiply(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """x [T, in] to [T, out], as fast as it goes."""
    num_rows = len(x)
    if num_rows >= _LEAST_ROWS or not packed.is_reordered:
        return _product(x, packed)
    return _product(_padded(x, _LEAST_ROWS), packed)[:num_rows]


def multiply_in_tiles(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """x [T, in] to [T, out]; the bits of a row depend on that row alone.

    The rows are cut into tiles of a few proved sizes (`proved_tiles`), the last one padded.
    """
    num_rows = len(x)
    sizes = _cut(num_rows, packed.tiles)
    if sum(sizes) != num_rows:
        x = _padded(x, sum(sizes))
    if len(sizes) == 1:
        return _product(x, packed)[:num_rows]
    out = x.new_empty(len(x), packed.out_features)
    start = 0
    for size in sizes:
        out[start : start + size] = _product(x[start : start + size], packed)
        start += size
    return out[:num_rows]


def proved_tiles(packed: PackedLinear, in_features: int) -> tuple[int, ...]:
    """The tile sizes that give this weight's products the same bits row by row on this machine.

    A product of fixed shape is the same sequence of instructions whatever the numbers, so random
    rows that agree in every bit show that the order of additions is the same. RuntimeError if
    even the smallest tile depends on where in the tile a row stands.
    """
    # At least two tiles are compared, or nothing would be proved.
    most = max(_PROOF_ELEMENTS // packed.out_features, 2 * TILES[0])
    candidates = [size for size in TILES if size <= most]
    generator = torch.Generator().manual_seed(0)
    shape = (candidates[-1], in_features)
    x = torch.randn(shape, generator=generator).to(packed.weight.dtype)
    smallest = candidates[0]
    truth = _in_parts(x, packed, smallest)
    turned = _product(x[:smallest].roll(1, 0), packed)
    if not torch.equal(turned.roll(-1, 0), truth[:smallest]):
        raise RuntimeError(
            f"deterministic: a product of {smallest} rows depends on their order "
            f"(weight {packed.out_features} x {in_features}, {packed.weight.dtype})"
        )
    return tuple(size for size in candidates if torch.equal(_in_parts(x, packed, size), truth))


def _cut(num_rows: int, tiles: tuple[int, ...]) -> list[int]:
    """Tiles that hold num_rows: the largest that fit, or a larger one that would be 3/4 full."""
    sizes: list[int] = []
    left = num_rows
    while left > 0:
        fitting = [size for size in tiles if size <= left] or [tiles[0]]
        size = fitting[-1]
        for larger in itertools.islice(tiles, tiles.index(size) + 1, None):
            if left * 4 >= larger * 3:
                size = larger
        sizes.append(size)
        left -= size
    return sizes


def _padded(x: torch.Tensor, num_rows: int) -> torch.Tensor:
    return F.pad(x, (0, 0, 0, num_rows - len(x)))


def _product(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    if packed.is_reordered:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, packed.weight, packed.bias, "none", [], ""
        )
        return result
    return F.linear(x, packed.weight, packed.bias)


def _in_parts(x: torch.Tensor, packed: PackedLinear, size: int) -> torch.Tensor:
    return torch.cat([_product(part, packed) for part in x.view(-1, size, x.shape[1])])


def _has_onednn(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype is torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
