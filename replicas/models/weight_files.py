"""Finds a folder's safetensors as Hugging Face would, and sees that none is missing or cut."""

import json
from pathlib import Path

from replicas.models.supported import ModelUnavailable

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


def weight_files(folder: str | Path) -> list[Path]:
    """The safetensors that make up the model in `folder`, sorted by name.

    An index names the shards; without one it is `model.safetensors`, or the only safetensors file.
    Raises ModelUnavailable if there are none, or one is missing or shorter than its header says.
    """
    folder = Path(folder)
    files = _named_files(folder)
    for file in files:
        _check_whole(file)
    return files


def _named_files(folder: Path) -> list[Path]:
    index = folder / INDEX_NAME
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        return [folder / name for name in names]
    if (folder / SINGLE_NAME).is_file():
        return [folder / SINGLE_NAME]
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        raise ModelUnavailable(f"{folder}: {len(found)} safetensors files but no {INDEX_NAME}")
    raise ModelUnavailable(f"{folder}: holds no safetensors and no GGUF file")


def _check_whole(file: Path) -> None:
    if not file.is_file():
        raise ModelUnavailable(f"{file}: missing")
    num_bytes = file.stat().st_size
    try:
        with file.open("rb") as opened:
            header_bytes = int.from_bytes(opened.read(8), "little")
            if header_bytes > num_bytes:
                raise ValueError(f"a header of {header_bytes} bytes in {num_bytes}")
            header = json.loads(opened.read(header_bytes))
    except ValueError as error:
        raise ModelUnavailable(f"{file}: not a safetensors file ({error})") from error
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    expected_bytes = 8 + header_bytes + max(ends, default=0)
    if num_bytes != expected_bytes:
        raise ModelUnavailable(f"{file}: {num_bytes} bytes, its header says {expected_bytes}")
