"""Turns text into token ids and back for the gateway, without torch or transformers."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tokenizers import Tokenizer

from cluster.text.token_pieces import TokenPieces
from replicas.models.prepared_model import PreparedModel

# About 1 ms of work, the longest that the loop which serves every stream should stand still.
LONG_TEXT_CHARACTERS = 4 * 1024


class InvalidText(ValueError):
    """The text is not Unicode that can be encoded; the message is fit for a client."""


class TextTokenizer:
    """The tokenizer of one prepared model.

    vocab_size: ids in [0, vocab_size) are what the model's embedding accepts. bos_token_id goes
    before a text that is encoded with special tokens; None adds nothing. Long texts are encoded
    in `num_threads` threads while the event loop carries on.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        bos_token_id: int | None = None,
        num_threads: int = 2,
    ) -> None:
        # A prompt is never cut or filled up, whatever the tokenizer's file asks for.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._bos = [] if bos_token_id is None else [bos_token_id]
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenize")
        self.vocab_size = vocab_size
        self.pieces = TokenPieces(tokenizer)

    @classmethod
    def load(cls, model: PreparedModel, *, num_threads: int = 2) -> "TextTokenizer":
        """Read the prepared folder's tokenizer.json."""
        return cls(
            Tokenizer.from_file(str(Path(model.folder) / "tokenizer.json")),
            vocab_size=model.vocab_size,
            bos_token_id=model.bos_token_id if model.add_bos else None,
            num_threads=num_threads,
        )

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`; special tokens are right for prompts, wrong for rendered chats.

        Raises InvalidText for a lone surrogate, which JSON can carry and UTF-8 cannot.
        """
        return self.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Token ids of each text, computed on several cores."""
        for text in texts:
            _check_encodable(text)
        # Of the library's ways to encode, only the batched ones let go of the GIL; `_fast` leaves
        # out the offsets, which take half the time and are not wanted here.
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        begin = self._bos if add_special_tokens else []
        return [[*begin, *encoding.ids] for encoding in encodings]

    async def encode_async(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Like `encode`; a long text is encoded in a thread, so that other streams go on."""
        if len(text) <= LONG_TEXT_CHARACTERS:
            return self.encode(text, add_special_tokens=add_special_tokens)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, lambda: self.encode(text, add_special_tokens=add_special_tokens)
        )

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids` as a whole; ids that the tokenizer does not know add nothing."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_text(self, token_id: int) -> str:
        """One token alone, as log probabilities show it; half a character shows as U+FFFD."""
        return self.pieces.bytes_of(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for, as log probabilities list them."""
        return self.pieces.bytes_of(token_id)

    def close(self) -> None:
        """End the threads; texts being encoded are finished first."""
        self._threads.shutdown()


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidText(
            f"the text holds a lone surrogate (U+{ord(text[error.start]):04X}) "
            f"at character {error.start}"
        ) from error
