"""A model folder made ready once, so that gateways can read it without torch or transformers.

A prepared folder holds `pagoda.json` (this file's PreparedModel), `config.json` (Hugging Face),
`tokenizer.json`, perhaps `chat_template.jinja`, and either the safetensors themselves or the path
of the folder that has them.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

FILE_NAME = "pagoda.json"


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """What every part of the house needs to know of a model.

    folder: the prepared folder. weights_dir: folder of the safetensors (may be another one).
    fingerprint: hex SHA-256 over config and weights; equal fingerprints mean equal K and V.
    architecture: the Hugging Face class name. max_model_len: the longest context it was made for.
    eos_token_ids: tokens that end a reply. add_bos: whether a completion prompt starts with
    bos_token_id. special_tokens: name to text, for the chat template (bos_token, eos_token, ...).
    """

    folder: str
    name: str
    weights_dir: str
    fingerprint: str
    architecture: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    add_bos: bool
    special_tokens: dict[str, str]

    def save(self) -> None:
        """Write pagoda.json into the prepared folder, whole or not at all."""
        folder = Path(self.folder)
        draft = folder / (FILE_NAME + ".draft")
        values = asdict(self)
        # The folder may be renamed or carried to another machine, its own weights with it.
        del values["folder"]
        if self.weights_dir == self.folder:
            values["weights_dir"] = "."
        draft.write_text(json.dumps(values, indent=2))
        draft.replace(folder / FILE_NAME)

    @classmethod
    def load(cls, folder: str | Path) -> "PreparedModel":
        """Read a prepared folder; FileNotFoundError if it was never prepared."""
        values = json.loads((Path(folder) / FILE_NAME).read_text())
        values["folder"] = str(folder)
        values["weights_dir"] = str(Path(folder) / values["weights_dir"])
        values["eos_token_ids"] = tuple(values["eos_token_ids"])
        return cls(**values)
