"""Reads what the house must know of a model from the files that Hugging Face ships with it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from replicas.models.json_file import read_json
from replicas.models.prepared_model import PreparedModel
from replicas.models.supported import ModelUnavailable, supported_architecture

_SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)
# Ends of a turn that chat templates write but that configs often forget to name as an end.
_ENDS_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>")


def describe(folder: Path, *, name: str, weights_dir: Path, fingerprint: str) -> PreparedModel:
    """The PreparedModel of `folder`, which holds config.json, tokenizer.json and their kin."""
    config = read_json(folder / "config.json")
    tokenizer = _load_tokenizer(folder / "tokenizer.json")
    special_tokens = _special_tokens(folder)
    bos_token_id = _bos_token_id(config, special_tokens, tokenizer)
    return PreparedModel(
        folder=str(folder),
        name=name,
        weights_dir=str(weights_dir),
        fingerprint=fingerprint,
        architecture=supported_architecture(config, name=name),
        vocab_size=int(config["vocab_size"]),
        max_model_len=max_model_len(config),
        eos_token_ids=_eos_token_ids(folder, config, special_tokens, tokenizer),
        bos_token_id=bos_token_id,
        add_bos=_adds_bos(folder, bos_token_id, tokenizer),
        special_tokens=special_tokens,
    )


def max_model_len(config: Mapping[str, Any]) -> int:
    """Longest context in tokens: trained positions, times what rope scaling adds to them."""
    trained = int(config["max_position_embeddings"])
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "yarn":
        trained = int(rope.get("original_max_position_embeddings") or trained)
    if kind in ("linear", "dynamic", "yarn"):
        return int(trained * float(rope["factor"]))
    return trained


def _load_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  the library raises bare Exception
        raise ModelUnavailable(f"{path}: not a fast tokenizer ({error})") from error


def _special_tokens(folder: Path) -> dict[str, str]:
    """Name to text. Each value is a string, or an object with the string under `content`."""
    named = read_json(folder / "special_tokens_map.json")
    named |= read_json(folder / "tokenizer_config.json")
    found = {}
    for name in _SPECIAL_TOKENS:
        value = named.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _bos_token_id(
    config: Mapping[str, Any], special_tokens: Mapping[str, str], tokenizer: Tokenizer
) -> int | None:
    named = special_tokens.get("bos_token")
    if named is not None:
        token_id: int | None = tokenizer.token_to_id(named)
        return token_id
    token_id = config.get("bos_token_id")
    return None if token_id is None else int(token_id)


def _eos_token_ids(
    folder: Path,
    config: Mapping[str, Any],
    special_tokens: Mapping[str, str],
    tokenizer: Tokenizer,
) -> tuple[int, ...]:
    generation = read_json(folder / "generation_config.json")
    found = set(_ids(generation.get("eos_token_id"))) | set(_ids(config.get("eos_token_id")))
    template = folder / "chat_template.jinja"
    template_text = template.read_text(encoding="utf-8") if template.is_file() else ""
    ends = [end for end in _ENDS_OF_TURN if end in template_text]
    for text in [special_tokens.get("eos_token"), *ends]:
        token_id = None if text is None else tokenizer.token_to_id(text)
        if token_id is not None:
            found.add(token_id)
    return tuple(sorted(found))


def _ids(value: object) -> Iterator[int]:
    for token_id in value if isinstance(value, list) else [value]:
        if isinstance(token_id, int):
            yield token_id


def _adds_bos(folder: Path, bos_token_id: int | None, tokenizer: Tokenizer) -> bool:
    if bos_token_id is None:
        return False
    said = read_json(folder / "tokenizer_config.json").get("add_bos_token")
    if isinstance(said, bool):
        return said
    token_ids = tokenizer.encode("a", add_special_tokens=True).ids
    return bool(token_ids) and token_ids[0] == bos_token_id
