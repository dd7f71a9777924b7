"""Writes tensors to safetensors one at a time, so a conversion never holds a whole model."""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

StoredDtype: TypeAlias = Literal["BF16", "F32"]

BYTES_OF_DTYPE: dict[StoredDtype, int] = {"BF16": 2, "F32": 4}
SHARD_BYTES = 2 * 1000**3


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor to be written: its name, how it is stored, and how to compute it in its turn.

    compute: returns float32 values of `shape`.
    """

    name: str
    dtype: StoredDtype
    shape: tuple[int, ...]
    compute: Callable[[], NDArray[np.float32]]

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count * BYTES_OF_DTYPE[self.dtype]


def write_safetensors(
    folder: Path,
    tensors: Iterable[PlannedTensor],
    *,
    on_bytes: Callable[[int], object],
    shard_bytes: int = SHARD_BYTES,
) -> list[Path]:
    """Write `tensors` into `folder` in Hugging Face's layout; returns the files.

    One file `model.safetensors`, or shards with an index once they would pass `shard_bytes`.
    `on_bytes` is told the size of each tensor once written. Equal input gives equal bytes.
    """
    shards = _split(tensors, shard_bytes=shard_bytes)
    if len(shards) == 1:
        path = folder / "model.safetensors"
        _write_file(path, shards[0], on_bytes=on_bytes)
        return [path]
    paths = []
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        path = folder / f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_file(path, shard, on_bytes=on_bytes)
        weight_map |= {tensor.name: path.name for tensor in shard}
        paths.append(path)
    total_bytes = sum(tensor.num_bytes for shard in shards for tensor in shard)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return paths


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of `values` rounded to bfloat16, ties to even. NaN is not expected in weights."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    is_odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + is_odd) >> np.uint32(16)).astype(np.uint16)


def _split(tensors: Iterable[PlannedTensor], *, shard_bytes: int) -> list[list[PlannedTensor]]:
    shards: list[list[PlannedTensor]] = [[]]
    filled_bytes = 0
    for tensor in tensors:
        if shards[-1] and filled_bytes + tensor.num_bytes > shard_bytes:
            shards.append([])
            filled_bytes = 0
        shards[-1].append(tensor)
        filled_bytes += tensor.num_bytes
    return shards


def _write_file(
    path: Path, tensors: Sequence[PlannedTensor], *, on_bytes: Callable[[int], object]
) -> None:
    with path.open("wb") as file:
        file.write(_header(tensors))
        for tensor in tensors:
            file.write(_stored_bytes(tensor))
            on_bytes(tensor.num_bytes)
        file.flush()
        os.fsync(file.fileno())


def _header(tensors: Sequence[PlannedTensor]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.num_bytes
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _stored_bytes(tensor: PlannedTensor) -> bytes:
    values = tensor.compute()
    if values.shape != tensor.shape or not np.isfinite(values).all():
        raise ValueError(
            f"tensor {tensor.name}: expected finite values of shape {tensor.shape}, "
            f"got shape {values.shape}"
        )
    if tensor.dtype == "F32":
        return np.ascontiguousarray(values, dtype="<f4").tobytes()
    return to_bfloat16(values).astype("<u2").tobytes()
