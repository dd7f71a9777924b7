"""Copies a model's tokenizer and chat template into the forms that gateways read without torch."""

import shutil
from pathlib import Path

from replicas.models.json_file import read_json
from replicas.models.supported import ModelUnavailable

TEMPLATE_NAME = "chat_template.jinja"
NAMED_TEMPLATES = "additional_chat_templates"
_COPIED = ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
_SLOW_TOKENIZERS = ("tokenizer.model", "vocab.json", "spiece.model", "sentencepiece.bpe.model")


def copy_tokenizer_files(source: Path, target: Path, *, name: str) -> None:
    """Fill `target` with tokenizer.json, its configs and chat templates from the folder `source`.

    Where only the files of a slow tokenizer exist, transformers converts them. Raises
    ModelUnavailable if there is no tokenizer at all.
    """
    for file_name in _COPIED:
        if (source / file_name).is_file():
            shutil.copyfile(source / file_name, target / file_name)
    if (source / "tokenizer.json").is_file():
        shutil.copyfile(source / "tokenizer.json", target / "tokenizer.json")
    else:
        _convert_slow_tokenizer(source, target, name=name)
    _write_templates(source, target)


def _convert_slow_tokenizer(source: Path, target: Path, *, name: str) -> None:
    if not any((source / file_name).is_file() for file_name in _SLOW_TOKENIZERS):
        raise ModelUnavailable(f"model {name}: {source} holds no tokenizer.json and no other one")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(source), trust_remote_code=False, local_files_only=True
        )
    except (ValueError, OSError, ImportError, TypeError, KeyError, AttributeError) as error:
        raise ModelUnavailable(f"model {name}: its tokenizer cannot be read: {error}") from error
    if not tokenizer.is_fast:
        raise ModelUnavailable(f"model {name}: its tokenizer has no fast form")
    tokenizer.backend_tokenizer.save(str(target / "tokenizer.json"))


def _write_templates(source: Path, target: Path) -> None:
    """The default template, and named ones (such as `tool_use`) beside it, from wherever."""
    templates = _templates_in_config(source)
    if (source / TEMPLATE_NAME).is_file():
        templates["default"] = (source / TEMPLATE_NAME).read_text(encoding="utf-8")
    for path in sorted((source / NAMED_TEMPLATES).glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    for template_name, text in templates.items():
        if template_name == "default":
            (target / TEMPLATE_NAME).write_text(text, encoding="utf-8")
        else:
            (target / NAMED_TEMPLATES).mkdir(exist_ok=True)
            file_name = f"{Path(template_name).name}.jinja"
            (target / NAMED_TEMPLATES / file_name).write_text(text, encoding="utf-8")


def _templates_in_config(source: Path) -> dict[str, str]:
    """`chat_template` is one text, or a list of objects with a name and a template."""
    value = read_json(source / "chat_template.json").get("chat_template")
    value = read_json(source / "tokenizer_config.json").get("chat_template") or value
    if isinstance(value, str):
        return {"default": value}
    return {entry["name"]: entry["template"] for entry in value or []}
