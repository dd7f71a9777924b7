"""Reads the JSON objects that come with a model, naming the file when one is broken."""

import json
from pathlib import Path
from typing import Any

from replicas.models.supported import ModelUnavailable


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty if there is no such file, ModelUnavailable if broken."""
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelUnavailable(f"{path}: not JSON ({error})") from error
    if not isinstance(values, dict):
        raise ModelUnavailable(f"{path}: expected a JSON object")
    return values
