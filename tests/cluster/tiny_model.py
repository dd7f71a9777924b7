"""A prepared model folder without weights: one token for each byte, and a plain chat template."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from replicas.models.prepared_model import PreparedModel

NAME = "tiny"
_ALPHABET = sorted(ByteLevel.alphabet())
# Printable ASCII comes first in the alphabet, from "!" on.
NUM_PRINTABLE = 94


def prepare_tiny_model(folder: Path, *, fingerprint: str) -> PreparedModel:
    """Write the folder; token i below NUM_PRINTABLE is the i-th printable character."""
    folder.mkdir()
    tokenizer = Tokenizer(
        models.BPE(vocab={text: number for number, text in enumerate(_ALPHABET)}, merges=[])
    )
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    )
    model = PreparedModel(
        folder=str(folder),
        name=NAME,
        weights_dir=str(folder),
        fingerprint=fingerprint,
        architecture="TinyForCausalLM",
        vocab_size=len(_ALPHABET),
        max_model_len=4096,
        eos_token_ids=(len(_ALPHABET) - 1,),
        bos_token_id=None,
        add_bos=False,
        special_tokens={},
    )
    model.save()
    return model


def token_id_of(character: str) -> int:
    """The token of a printable character."""
    return _ALPHABET.index(character)


def text_of(token_ids: list[int]) -> str:
    """What those tokens read."""
    return "".join(_ALPHABET[token_id] for token_id in token_ids)
