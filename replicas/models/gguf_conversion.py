"""Converts a GGUF model into the files the house reads, without torch and tensor by tensor."""

import json
import logging
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGUFReader, dequantize

from replicas.models.gguf_config import GgufConfig
from replicas.models.gguf_tensors import plan_tensors
from replicas.models.gguf_tokenizer import adds_bos, build_tokenizer
from replicas.models.safetensors_writer import write_safetensors
from replicas.models.start_up_progress import StartUpProgress
from replicas.models.supported import ModelUnavailable
from replicas.models.tokenizer_files import copy_tokenizer_files

log = logging.getLogger(__name__)

_SPLIT_FILE = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


@dataclass(frozen=True, slots=True)
class GgufSource:
    """An opened GGUF model: its metadata (key to value), config, and one reader per split file.

    folder: where the file lies; a tokenizer.json beside it goes before the file's own tokenizer.
    """

    name: str
    fields: dict[str, Any]
    config: dict[str, Any]
    readers: list[GGUFReader]
    folder: Path


def split_files(path: Path) -> list[Path]:
    """Every file of a GGUF model, given its first (or only) one; ModelUnavailable if one lacks."""
    numbered = _SPLIT_FILE.fullmatch(path.name)
    if not numbered:
        return [path]
    stem, _, count = numbered.groups()
    files = [path.with_name(f"{stem}-{i:05d}-of-{count}.gguf") for i in range(1, int(count) + 1)]
    for file in files:
        if not file.is_file():
            raise ModelUnavailable(f"model {path}: its part {file.name} is missing")
    return files


def open_gguf(path: Path, *, name: str, clock: Callable[[], float] = time.monotonic) -> GgufSource:
    """Read the metadata; UnsupportedModel if no decoder can run it, before any weight is read."""
    started_at = clock()
    try:
        readers = [GGUFReader(file) for file in split_files(path)]
    except (ValueError, IndexError) as error:
        raise ModelUnavailable(f"model {path}: not a whole GGUF file ({error})") from error
    fields = {key: field.contents() for key, field in readers[0].fields.items()}
    tensors = {tensor.name: tensor for reader in readers for tensor in reader.tensors}
    factors = tensors.get("rope_freqs.weight")
    config = GgufConfig(
        fields,
        name=name,
        tensor_names=frozenset(tensors),
        rope_factors=None if factors is None else dequantize(factors.data, factors.tensor_type),
    ).config()
    log.info("gguf read name=%s tensors=%d seconds=%.2f", name, len(tensors), clock() - started_at)
    return GgufSource(name, fields, config, readers, path.parent)


def convert_gguf(source: GgufSource, folder: Path, *, progress: StartUpProgress) -> None:
    """Write config, tokenizer, chat template and safetensors of `source` into `folder`."""
    planned = plan_tensors(source.readers, source.config, name=source.name)
    total_bytes = sum(tensor.num_bytes for tensor in planned)
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < total_bytes:
        raise ModelUnavailable(
            f"model {source.name}: converting needs {total_bytes} bytes in {folder}, "
            f"{free_bytes} are free"
        )
    config = source.config | {"dtype": "float32" if planned[0].dtype == "F32" else "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    _write_tokenizer_config(source.fields, folder)
    if (source.folder / "tokenizer.json").is_file():
        copy_tokenizer_files(source.folder, folder, name=source.name)
    else:
        build_tokenizer(source.fields, name=source.name).save(str(folder / "tokenizer.json"))
    with progress.phase(f"convert {source.name}", total_bytes=total_bytes) as on_bytes:
        write_safetensors(folder, planned, on_bytes=on_bytes)


def _write_tokenizer_config(fields: dict[str, Any], folder: Path) -> None:
    tokens = fields["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {"add_bos_token": adds_bos(fields)}
    for token_name, key in _SPECIAL_TOKENS.items():
        token_id = fields.get(f"tokenizer.ggml.{key}")
        if token_id is not None:
            config[token_name] = tokens[int(token_id)]
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    template = fields.get("tokenizer.chat_template")
    if template:
        (folder / "chat_template.jinja").write_text(template)
