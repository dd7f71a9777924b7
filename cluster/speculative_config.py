"""Reads vLLM's --speculative-config, one JSON object, into the settings of the house."""

import json

from cluster.settings import Given, Givens, SettingError

FLAG = "--speculative-config"
_PATH = ("engine", "scheduler", "speculation")
_SETTINGS = {
    "method": "speculative_method",
    "model": "speculative_model",
    "num_speculative_tokens": "num_speculative_tokens",
    "prompt_lookup_min": "prompt_lookup_min",
    "prompt_lookup_max": "prompt_lookup_max",
}


def from_speculative_config(text: str) -> Givens:
    """The settings that the object names; a model without a method is a draft_model.

    Raises SettingError for what is no such object.
    """
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise SettingError(f"{FLAG}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise SettingError(f"{FLAG}={text}: expected a JSON object")
    unknown = sorted(values.keys() - _SETTINGS.keys())
    if unknown:
        expected = ", ".join(_SETTINGS)
        raise SettingError(f"{FLAG}: {unknown[0]}: no such key; expected {expected}")
    if "model" in values:
        values.setdefault("method", "draft_model")
    return {
        (*_PATH, _SETTINGS[key]): Given(value, f"{FLAG}: {key}") for key, value in values.items()
    }
