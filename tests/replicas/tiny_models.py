"""Tiny random models of every supported family, and batches over shuffled blocks to run them on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from replicas.batch import Batch, SampleSpec
from replicas.config import EngineConfig, SchedulerConfig
from replicas.model_runner import ModelRunner
from replicas.models.prepared_model import PreparedModel
from replicas.request import SamplingParams

GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
VOCAB = 211
BLOCK_SIZE = 4
NUM_BLOCKS = 160

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama_biased": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama_untied": ("Llama", {"tie_word_embeddings": False}),
    "llama_no_gqa": ("Llama", {"num_key_value_heads": 6, "head_dim": 16}),
    "llama_one_kv_head": ("Llama", {"num_key_value_heads": 1}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 24}),
    "mistral_windowed": ("Mistral", {"sliding_window": 7}),
    "qwen2": ("Qwen2", {}),
    "qwen2_windowed": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 24}),
    "qwen3_windowed": (
        "Qwen3",
        {
            "head_dim": 16,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "rope_linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    "rope_dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}),
    "rope_llama3": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "rope_yarn": (
        "Qwen2",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
}


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A saved random model: transformers' own, in float32, and the prepared folder."""

    own: Any
    prepared: PreparedModel

    def own_logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """[tokens, vocab] float32, as transformers computes them."""
        with torch.inference_mode():
            result: torch.Tensor = self.own(torch.tensor([list(token_ids)])).logits[0].float()
        return result

    def runner(self, **settings: Any) -> ModelRunner:
        """A runner on this model; settings of EngineConfig or SchedulerConfig."""
        values: dict[str, Any] = {
            "dtype": "float32",
            "num_blocks_override": NUM_BLOCKS,
            "num_threads": 2,
            **settings,
        }
        scheduler = SchedulerConfig(
            block_size=values.pop("block_size", BLOCK_SIZE),
            max_num_seqs=32,
            max_num_batched_tokens=256,
            max_model_len=values.pop("max_model_len", 256),
        )
        config = EngineConfig(model=self.prepared.folder, scheduler=scheduler, **values)
        return ModelRunner(self.prepared, config)


def save_tiny(folder: Path, family: str, **overrides: Any) -> TinyModel:
    """A random model of `family` (a key of FAMILIES), written to `folder` as safetensors."""
    name, settings = FAMILIES[family]
    values = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 72,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.15,
        **settings,
        **overrides,
    }
    if "rope_parameters" in values:
        values["rope_parameters"] = {"rope_theta": 10_000.0, **values["rope_parameters"]}
    config = getattr(transformers, f"{name}Config")(**values)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        # Biases and norms start at 0 and 1, which would hide that they are left out.
        for key, parameter in model.named_parameters():
            if key.endswith("bias") or "norm" in key:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return TinyModel(model, prepared(folder, config))


def prepared(folder: Path, config: Any) -> PreparedModel:
    """A prepared model over a folder of safetensors, without tokenizer."""
    architecture = f"{type(config).__name__.removesuffix('Config')}ForCausalLM"
    return PreparedModel(
        folder=str(folder),
        name=f"tiny {architecture}",
        weights_dir=str(folder),
        fingerprint="00",
        architecture=architecture,
        vocab_size=config.vocab_size,
        max_model_len=config.max_position_embeddings,
        eos_token_ids=(2,),
        bos_token_id=None,
        add_bos=False,
        special_tokens={},
    )


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens start to end of a request, to be computed in one batch; the last one samples."""

    request: "PagedRequest"
    start: int
    end: int
    sampling: SamplingParams = GREEDY


@dataclass(frozen=True, slots=True)
class PagedRequest:
    """A request whose blocks lie anywhere in the cache."""

    token_ids: tuple[int, ...]
    blocks: tuple[int, ...]
    slot: int = 0

    def part(self, start: int, end: int) -> Part:
        """Its tokens start to end."""
        return Part(self, start, end)

    def whole(self) -> Part:
        """All its tokens."""
        return Part(self, 0, len(self.token_ids))


def paged_requests(
    prompts: Sequence[Sequence[int]],
    *,
    seed: int = 0,
    block_size: int = BLOCK_SIZE,
    num_blocks: int = NUM_BLOCKS,
) -> list[PagedRequest]:
    """One request for each prompt, over blocks dealt out at random."""
    deck = np.random.default_rng(seed).permutation(num_blocks).tolist()
    requests = []
    for slot, prompt in enumerate(prompts):
        count = -(-len(prompt) // block_size)
        blocks, deck = tuple(deck[:count]), deck[count:]
        requests.append(PagedRequest(tuple(prompt), blocks, slot))
    return requests


def random_prompts(lengths: Sequence[int], *, seed: int = 0, vocab: int = VOCAB) -> list[list[int]]:
    """Random token ids of the given lengths."""
    generator = np.random.default_rng(seed)
    return [generator.integers(0, vocab, length).tolist() for length in lengths]


def batch_of(parts: Sequence[Part], *, block_size: int = BLOCK_SIZE) -> Batch:
    """One step that computes all `parts`, each a row that samples."""
    positions = [np.arange(part.start, part.end, dtype=np.int64) for part in parts]
    widest = max(len(part.request.blocks) for part in parts)
    # What lies behind a row's own blocks must not matter.
    tables = np.full((len(parts), widest), 7, dtype=np.int32)
    slot_mapping = []
    for row, (part, own) in enumerate(zip(parts, positions, strict=True)):
        blocks = np.array(part.request.blocks, dtype=np.int64)
        tables[row, : len(blocks)] = blocks
        slot_mapping.append(blocks[own // block_size] * block_size + own % block_size)
    counts = [part.end - part.start for part in parts]
    token_ids = [token for part in parts for token in part.request.token_ids[part.start : part.end]]
    return Batch(
        step=0,
        token_ids=np.array(token_ids, dtype=np.int64),
        positions=np.concatenate(positions),
        slot_mapping=np.concatenate(slot_mapping),
        query_start=np.cumsum([0, *counts], dtype=np.int32),
        context_lens=np.array([part.end for part in parts], dtype=np.int32),
        block_tables=tables,
        slots=np.array([part.request.slot for part in parts], dtype=np.int32),
        samples=tuple(
            SampleSpec(row=row, sampling=part.sampling, choice=0, position=part.end)
            for row, part in enumerate(parts)
        ),
    )
