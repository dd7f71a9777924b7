"""What is written is read back equal by the format's own library."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from replicas.models.safetensors_writer import PlannedTensor, to_bfloat16, write_safetensors
from replicas.models.weight_files import weight_files
from tests.replicas.models import tiny_files as tiny


def test_float32_tensors_are_read_back_equal(tmp_path: Path) -> None:
    values = tiny.weights()
    write_safetensors(tmp_path, tiny.planned(values, dtype="F32"), on_bytes=tiny.unwatched)
    found = load_file(tmp_path / "model.safetensors")
    assert all(np.array_equal(found[name], values[name]) for name in values)


def test_large_models_are_split_and_indexed(tmp_path: Path) -> None:
    values = tiny.weights()
    sizes: list[int] = []
    files = write_safetensors(
        tmp_path, tiny.planned(values, dtype="F32"), on_bytes=sizes.append, shard_bytes=4000
    )
    assert len(files) > 2
    assert weight_files(tmp_path) == files
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(values)
    assert index["metadata"]["total_size"] == sum(sizes)
    for name, file in index["weight_map"].items():
        assert np.array_equal(load_file(tmp_path / file)[name], values[name])


def test_bfloat16_rounds_to_nearest_even_like_torch() -> None:
    torch = pytest.importorskip("torch")
    chooser = np.random.default_rng(3)
    bits = chooser.integers(0, 2**32, size=100_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values) & (np.abs(values) < 1e38)]
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy()
    assert np.array_equal(to_bfloat16(values).view(np.int16), expected)


@pytest.mark.parametrize("broken", [np.array([np.nan, 1.0]), np.array([1.0])])
def test_broken_values_are_not_written(tmp_path: Path, broken: np.ndarray) -> None:
    tensor = PlannedTensor("w", "F32", (2,), lambda: broken.astype(np.float32))
    with pytest.raises(ValueError, match="tensor w: expected finite values"):
        write_safetensors(tmp_path, [tensor], on_bytes=tiny.unwatched)
