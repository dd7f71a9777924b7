"""Names a model by what it computes, so that caches of different models can never mix."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 4 * 1024 * 1024
_SHA256_NAME = re.compile(r"[0-9a-f]{64}")
# What loading code writes into a config without changing what the model computes.
_NO_PART_OF_THE_MODEL = ("transformers_version", "_name_or_path", "use_cache")


def file_digest(path: Path, *, on_bytes: Callable[[int], object]) -> str:
    """Hex SHA-256 of a file's bytes; `on_bytes` is told of each portion read.

    A blob of the Hugging Face cache is named by its SHA-256, which the download checked the size
    against and the hub computed: its name is taken as the answer.
    """
    blob = path.resolve()
    if _SHA256_NAME.fullmatch(blob.name) and _is_hub_blob(blob):
        on_bytes(path.stat().st_size)
        return blob.name
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            on_bytes(len(chunk))
    return digest.hexdigest()


def fingerprint(
    config: Mapping[str, Any], weight_files: Sequence[Path], *, on_bytes: Callable[[int], object]
) -> str:
    """Hex SHA-256 over the config and every weight file; equal values mean equal K and V.

    Neither the folder nor the time nor the library that wrote the config has a part in it.
    """
    meaning = {key: value for key, value in config.items() if key not in _NO_PART_OF_THE_MODEL}
    digest = hashlib.sha256(json.dumps(meaning, sort_keys=True).encode())
    for path in sorted(weight_files, key=lambda path: path.name):
        digest.update(f"\n{path.name} {file_digest(path, on_bytes=on_bytes)}".encode())
    return digest.hexdigest()


def _is_hub_blob(path: Path) -> bool:
    return path.parent.name == "blobs" and path.parent.parent.name.startswith("models--")
