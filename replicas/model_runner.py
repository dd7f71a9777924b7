"""Run: computes one batch after another with a model, and samples from what comes out."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch

from replicas.batch import UNRESOLVED, Batch, Sampled, SampleSpec
from replicas.block_copier import BlockCopier
from replicas.config import EngineConfig
from replicas.kernels.interface import Kernels
from replicas.kernels.select import select_kernels
from replicas.kv_cache import allocate, block_layout, cache_dtype, size_kv_cache
from replicas.logprobs import with_logprobs
from replicas.memory.host_buffer import HostBuffer
from replicas.models.decoder import Decoder
from replicas.models.model_config import ModelConfig
from replicas.models.prepared_model import PreparedModel
from replicas.models.rotary import RotaryTable
from replicas.models.start_up_progress import StartUpProgress
from replicas.models.weights import Checkpoint, choose_dtype, load_weights
from replicas.request import SamplingParams
from replicas.runner import NearlyDone, Pause
from replicas.sampler import Sampler
from replicas.speculation.draft_batch import DraftBatch
from replicas.speculation.draft_model import DraftModel, draft_block_bytes, prepared_draft
from replicas.team_cores import num_allowed_cores

log = logging.getLogger(__name__)

_NOTHING = Sampled(np.empty(0, dtype=np.int64))

# On two cores of a CPU that multiplies bf16, a product costs as much a token at 64 as at 512.
_SATURATING_TOKENS = 64

WrapKernels = Callable[[Kernels], Kernels]


class ModelRunner:
    """A model, its KV cache and its sampler (implements replicas.runner.Runner).

    progress: how loading is shown; bars only if it says so. wrap_kernels: put around the back end
    (replicas.kernels.timed).
    Raises ModelError (a ValueError) for a model that cannot be run, KernelsUnavailable for a back
    end that cannot.
    """

    def __init__(
        self,
        prepared: PreparedModel,
        config: EngineConfig,
        *,
        progress: StartUpProgress | None = None,
        wrap_kernels: WrapKernels | None = None,
    ) -> None:
        self.num_threads = config.num_threads or num_allowed_cores()
        torch.set_num_threads(self.num_threads)
        model = ModelConfig.load(prepared.folder, name=prepared.name)
        checkpoint = Checkpoint(prepared.weights_dir, name=prepared.name)
        dtype = choose_dtype(config.dtype, model, checkpoint)
        kept_as = cache_dtype(config.kv_cache_dtype, dtype)
        kernels = _kernels(config, dtype, kept_as)
        device = kernels.device
        draft = prepared_draft(config)
        arithmetic = _arithmetic(kernels, dtype)
        if wrap_kernels is not None:
            kernels = wrap_kernels(kernels)
        with torch.inference_mode():
            shown = progress or StartUpProgress(is_shown=False)
            weights = load_weights(
                model, checkpoint, kernels, dtype, shown, quantization=config.quantization
            )
            size = size_kv_cache(
                model,
                config,
                kept_as,
                max_model_len=prepared.max_model_len,
                device=device,
                beside_bytes=draft_block_bytes(draft, config) if draft else 0,
            )
            rotary = RotaryTable(
                model.rope,
                max_model_len=size.max_model_len,
                dtype=dtype,
                device=device,
                name=prepared.name,
            )
        # Ordinary tensors, so that blocks can be copied in and out by others.
        cache = allocate(model, size, kept_as, device)
        self._caches = cache.layers
        self._copier = BlockCopier(cache)
        self._draft = DraftModel(draft, prepared, config, size) if draft else None
        self.layout = block_layout(
            model, size.block_size, kept_as, fingerprint=_fingerprint(prepared, config, arithmetic)
        )
        self._last_tokens = torch.zeros(
            config.scheduler.max_num_seqs, dtype=torch.int64, device=device
        )
        self._decoder = Decoder(model, weights, kernels, rotary, block_size=size.block_size)
        self._sampler = Sampler(prepared.eos_token_ids, vocab_size=model.vocab_size)
        self._device = device
        self._budget_tokens = min(config.scheduler.max_num_batched_tokens, size.max_model_len)
        self._size = size
        self.dtype_name = str(dtype).removeprefix("torch.")
        self.kernels_name = kernels.name
        self.rows_are_exact = kernels.deterministic

    @property
    def num_blocks(self) -> int:
        """Blocks in the KV cache."""
        return self._size.num_blocks

    @property
    def block_bytes(self) -> int:
        """Bytes of K and V of one block in all layers."""
        return self._size.block_bytes

    @property
    def max_model_len(self) -> int:
        """Longest context in tokens that model, settings and cache allow."""
        return self._size.max_model_len

    @property
    def saturating_tokens(self) -> int:
        """Tokens of a step beyond which none is cheaper for others beside it; 0: no limit."""
        return _SATURATING_TOKENS if self._device.type == "cpu" else 0

    def bind_host_buffer(self, buffer: HostBuffer) -> None:
        """Where blocks are copied out to; its slots hold `layout.payload_bytes` each.

        Bind it before the first batch that names a host slot; it is closed by whoever made it.
        """
        self._copier.bind_host_buffer(buffer)

    def run(self, batch: Batch, nearly_done: NearlyDone) -> Sampled:
        """Do the batch's moves, compute its rows, sample."""
        return self.run_pausing(batch, nearly_done, None)

    @torch.inference_mode()
    def run_pausing(self, batch: Batch, nearly_done: NearlyDone, pause: Pause | None) -> Sampled:
        """As `run`; another batch may be run in the pause."""
        moved = self._copier.move(batch.moves) if batch.moves else None
        if batch.num_rows:
            sampled = self._compute(batch, nearly_done, pause)
        else:
            nearly_done()
            sampled = _NOTHING
        return sampled if moved is None else replace(sampled, move_s=moved())

    def _compute(self, batch: Batch, nearly_done: NearlyDone, pause: Pause | None) -> Sampled:
        token_ids = self._resolve(batch)
        logits = self._decoder.logits(batch, token_ids, self._caches, nearly_done, pause)
        if not batch.samples:
            return _NOTHING
        tokens = self._sampler.sample(logits, batch.samples)
        rows = np.fromiter((sample.row for sample in batch.samples), dtype=np.int64)
        slots = torch.from_numpy(batch.slots[rows].astype(np.int64)).to(self._device)
        self._last_tokens.index_copy_(0, slots, tokens)
        return with_logprobs(tokens, logits, batch.samples)

    def draft(self, batch: DraftBatch) -> Sequence[Sequence[int]]:
        """[R]: guesses of the small model, which the settings must name."""
        assert self._draft is not None, "speculative_method is not draft_model"
        guesses: list[list[int]] = self._draft.guesses(batch).tolist()
        return guesses

    @torch.inference_mode()
    def logits(self, batch: Batch) -> torch.Tensor:
        """What `run` samples from: [len(batch.samples), vocab] float32."""
        return self._decoder.logits(batch, self._resolve(batch), self._caches, lambda: None).float()

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run steps of the usual sizes, so that no request pays for first-time compilation.

        Call it before the first request: it writes to the blocks of the cache.
        """
        started = time.perf_counter()
        most = min(self._budget_tokens, self.num_blocks * self._size.block_size)
        for num_tokens in sorted({1, min(8, most), most}):
            self.run(self._warm_up_batch(num_tokens), lambda: None)
        self._last_tokens.zero_()
        log.info("warm-up done seconds=%.2f", time.perf_counter() - started)

    def close(self) -> None:
        """Release the KV cache and the weights."""
        self._caches.clear()
        self._copier.close()
        self._draft = None
        with suppress(AttributeError):
            del self._decoder
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _resolve(self, batch: Batch) -> torch.Tensor:
        """Token ids [T] with each UNRESOLVED one replaced by what its slot sampled last."""
        token_ids = torch.from_numpy(batch.token_ids).to(self._device)
        (unresolved,) = np.nonzero(batch.token_ids == UNRESOLVED)
        if not len(unresolved):
            return token_ids
        rows = np.searchsorted(batch.query_start, unresolved, side="right") - 1
        slots = torch.from_numpy(batch.slots[rows].astype(np.int64)).to(self._device)
        places = torch.from_numpy(unresolved).to(self._device)
        return token_ids.index_copy(0, places, self._last_tokens.index_select(0, slots))

    def _warm_up_batch(self, num_tokens: int) -> Batch:
        size = self._size.block_size
        num_blocks = -(-num_tokens // size)
        greedy = SamplingParams(max_tokens=1, temperature=0.0)
        return Batch(
            step=0,
            token_ids=np.zeros(num_tokens, dtype=np.int64),
            positions=np.arange(num_tokens, dtype=np.int64),
            slot_mapping=np.arange(num_tokens, dtype=np.int64),
            query_start=np.array([0, num_tokens], dtype=np.int32),
            context_lens=np.array([num_tokens], dtype=np.int32),
            block_tables=np.arange(num_blocks, dtype=np.int32)[None],
            slots=np.zeros(1, dtype=np.int32),
            samples=(SampleSpec(row=0, sampling=greedy, choice=0, position=num_tokens),),
        )


def _kernels(config: EngineConfig, dtype: torch.dtype, kept_as: torch.dtype) -> Kernels:
    return select_kernels(
        config.kernels,
        dtype,
        deterministic=config.deterministic,
        cache_dtype=kept_as,
        quantization=config.quantization,
    )


def _fingerprint(prepared: PreparedModel, config: EngineConfig, arithmetic: str) -> str:
    """Of the K and V that come of this model with these settings."""
    fingerprint = prepared.fingerprint
    if config.quantization != "none":
        # What it computes is another model's K and V.
        fingerprint += f"-{config.quantization}"
    if config.deterministic:
        # Blocks that are equal bit for bit must not meet those that are equal up to rounding.
        fingerprint += f"-exact-{arithmetic}"
    return fingerprint


def _arithmetic(kernels: Kernels, dtype: torch.dtype) -> str:
    """What decides the last bit of K and V besides the model: back end, instruction set, dtype."""
    instruction_set = getattr(kernels, "isa", "")
    return f"{kernels.name}{instruction_set}-{str(dtype).removeprefix('torch.')}"
