"""The small model itself: its weights, and its K and V beside those of the model it guesses for."""

import logging

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from replicas.config import EngineConfig
from replicas.kernels.select import select_kernels
from replicas.kv_cache import KvCacheSize, allocate, block_bytes
from replicas.models.decoder import Decoder
from replicas.models.model_config import ModelConfig
from replicas.models.prepared_model import PreparedModel
from replicas.models.rotary import RotaryTable
from replicas.models.start_up_progress import StartUpProgress
from replicas.models.supported import ModelUnavailable
from replicas.models.weights import Checkpoint, choose_dtype, load_weights
from replicas.row_runs import largest
from replicas.speculation.draft_batch import DraftBatch

log = logging.getLogger(__name__)


class DraftModel:
    """Computes guesses, greedily. It has as many blocks as the model, under the same ids.

    Raises ModelUnavailable for a model of another vocabulary, and whatever loading one raises.
    """

    def __init__(
        self, draft: PreparedModel, model: PreparedModel, config: EngineConfig, size: KvCacheSize
    ) -> None:
        check_vocabularies(draft, model)
        shape = ModelConfig.load(draft.folder, name=draft.name)
        checkpoint = Checkpoint(draft.weights_dir, name=draft.name)
        dtype = choose_dtype(config.dtype, shape, checkpoint)
        # Its own: kernels keep memory that the steps of one decoder share.
        kernels = select_kernels(
            config.kernels,
            dtype,
            deterministic=config.deterministic,
            quantization=config.quantization,
        )
        shown = StartUpProgress(is_shown=False)
        with torch.inference_mode():
            weights = load_weights(
                shape, checkpoint, kernels, dtype, shown, quantization=config.quantization
            )
            rotary = RotaryTable(
                shape.rope,
                max_model_len=size.max_model_len,
                dtype=dtype,
                device=kernels.device,
                name=draft.name,
            )
        self._cache = allocate(shape, size, dtype, kernels.device)
        self._decoder = Decoder(shape, weights, kernels, rotary, block_size=size.block_size)
        self._block_size = size.block_size
        self._device = kernels.device
        log.info("draft model loaded name=%s dtype=%s", draft.name, dtype)

    @torch.inference_mode()
    def guesses(self, batch: DraftBatch) -> npt.NDArray[np.int64]:
        """[R, max(depths, 1)]; a row's numbers beyond its depth mean nothing."""
        guesses = np.zeros((len(batch.depths), max(1, *batch.depths)), dtype=np.int64)
        pass_, rows = batch.first, np.arange(len(batch.depths))
        for index in range(guesses.shape[1]):
            if index:
                pass_, rows = batch.further(index, guesses[:, index - 1], self._block_size)
            token_ids = torch.from_numpy(pass_.token_ids).to(self._device)
            layers = self._cache.layers
            logits = self._decoder.logits(pass_, token_ids, layers, lambda: None)
            guesses[rows, index] = largest(logits).cpu().numpy()
        return guesses


def prepared_draft(config: EngineConfig) -> PreparedModel | None:
    """The small model that the settings name; FileNotFoundError if it was never prepared."""
    speculation = config.scheduler.speculation
    if speculation.speculative_method != "draft_model":
        return None
    return PreparedModel.load(speculation.speculative_model)


def draft_block_bytes(draft: PreparedModel, config: EngineConfig) -> int:
    """Bytes of K and V of one block, beside those of the model it guesses for."""
    shape = ModelConfig.load(draft.folder, name=draft.name)
    dtype = choose_dtype(config.dtype, shape, Checkpoint(draft.weights_dir, name=draft.name))
    return block_bytes(shape, config.scheduler.block_size, dtype)


def check_vocabularies(draft: PreparedModel, model: PreparedModel) -> None:
    """ModelUnavailable unless a token means the same to both."""
    if draft.vocab_size != model.vocab_size:
        raise ModelUnavailable(
            f"speculative_model={draft.name}: has {draft.vocab_size} tokens; expected the "
            f"{model.vocab_size} of {model.name}"
        )
    own, wanted = _vocabulary(draft), _vocabulary(model)
    if own != wanted:
        differing = min(set(own.items()) ^ set(wanted.items()), key=lambda item: item[1])
        raise ModelUnavailable(
            f"speculative_model={draft.name}: token {differing[1]} is not that of {model.name}; "
            "expected a model with the same tokenizer"
        )


def _vocabulary(model: PreparedModel) -> dict[str, int]:
    tokenizer = Tokenizer.from_file(f"{model.folder}/tokenizer.json")
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    return vocabulary
