"""Fetches from the Hugging Face hub only what serving needs, after a look at the config."""

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from replicas.models.json_file import read_json
from replicas.models.model_config import ModelConfig
from replicas.models.supported import ModelUnavailable

log = logging.getLogger(__name__)

_NEEDED_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "chat_template*",
    "additional_chat_templates/*",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
)


@dataclass(frozen=True, slots=True)
class HubModel:
    """A place on the hub: `owner/name`, perhaps `@revision`, perhaps one GGUF file in it."""

    repository: str
    revision: str | None
    gguf_file: str | None

    @classmethod
    def parse(cls, spec: str) -> "HubModel | None":
        """`owner/name`, `owner/name@revision` or `owner/name/file.gguf`; None for anything else."""
        path, _, revision = spec.partition("@")
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or len(parts) < 2:
            return None
        file = "/".join(parts[2:])
        if file and not file.endswith(".gguf"):
            return None
        return cls("/".join(parts[:2]), revision or None, file or None)


def download(model: HubModel) -> Path:
    """The folder (or the GGUF file) in the Hugging Face cache, fetched if it is not there.

    HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE are obeyed by huggingface_hub. Raises
    UnsupportedModel before the weights are fetched, ModelUnavailable if the hub does not have the
    model, asks for permission, or cannot be reached.
    """
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    started_at = time.monotonic()
    try:
        path = _fetch_gguf(model) if model.gguf_file else _fetch_folder(model)
    except HFValidationError as error:
        raise ModelUnavailable(f"model {model.repository}: no such folder or hub id") from error
    except (HfHubHTTPError, OSError) as error:
        raise ModelUnavailable(_reason(model, error)) from error
    seconds = time.monotonic() - started_at
    log.info("model phase done phase='download %s' seconds=%.2f", model.repository, seconds)
    return path


def _fetch_folder(model: HubModel) -> Path:
    from huggingface_hub import hf_hub_download, snapshot_download

    config = hf_hub_download(model.repository, "config.json", revision=model.revision)
    ModelConfig.from_values(read_json(Path(config)), name=model.repository)
    return Path(
        snapshot_download(
            model.repository, revision=model.revision, allow_patterns=list(_NEEDED_FILES)
        )
    )


def _fetch_gguf(model: HubModel) -> Path:
    from huggingface_hub import hf_hub_download

    assert model.gguf_file is not None
    return Path(hf_hub_download(model.repository, model.gguf_file, revision=model.revision))


def _reason(model: HubModel, error: Exception) -> str:
    """One sentence for the person who typed the id."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name = model.repository
    if isinstance(error, GatedRepoError):
        return f"model {name}: the hub wants its licence accepted; set HF_TOKEN afterwards"
    if isinstance(error, RepositoryNotFoundError):
        return f"model {name}: no local folder and no hub model of that name (or it is private)"
    if isinstance(error, RevisionNotFoundError):
        return f"model {name}: the hub has no revision {model.revision}"
    if isinstance(error, LocalEntryNotFoundError):
        return (
            f"model {name}: not in the local cache, and the hub is offline "
            "(HF_HUB_OFFLINE) or cannot be reached"
        )
    if isinstance(error, EntryNotFoundError):
        return f"model {name}: the hub has no {model.gguf_file or 'config.json'} there"
    return f"model {name}: {error}"
