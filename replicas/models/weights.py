"""Reads a checkpoint into the packed weights of the lean decoder, and names what does not fit."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from replicas.config import Quantization
from replicas.kernels.interface import Kernels, PackedWeight
from replicas.models.model_config import ModelConfig
from replicas.models.output_head import OutputHead
from replicas.models.start_up_progress import StartUpProgress
from replicas.models.supported import ModelUnavailable
from replicas.models.weight_files import weight_files
from replicas.models.weight_packing import PackWeight, weight_packing

log = logging.getLogger(__name__)

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.bfloat16, "float32": torch.float32}
_SAFETENSORS_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
# Old checkpoints carry the angles along; they follow from the config.
_IGNORED_ENDINGS = (".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias")


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. qkv packs queries, keys, values [(H + 2G) * D, d]; gate_up packs [2F, d].

    qk_norm: [H + G, D], the norm of each query and key head, or None.
    """

    input_norm: torch.Tensor
    qkv: PackedWeight
    qk_norm: torch.Tensor | None
    output: PackedWeight
    post_norm: torch.Tensor
    gate_up: PackedWeight
    down: PackedWeight


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """embedding [vocab, d]; the head is the same tensor where they are tied."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: OutputHead


class Checkpoint:
    """The safetensors of one model, memory-mapped; a tensor is read when it is taken."""

    def __init__(self, folder: str | Path, *, name: str) -> None:
        self._name = name
        self._files: list[Any] = [
            safe_open(str(path), framework="pt") for path in weight_files(folder)
        ]
        self._place = {key: file for file in self._files for key in file.keys()}  # noqa: SIM118
        self._taken: set[str] = set()

    @property
    def dtype(self) -> str | None:
        """The dtype of its largest kind of tensor, the linear weights; None if it is no float."""
        for key, file in self._place.items():
            if key.endswith("proj.weight"):
                return _SAFETENSORS_DTYPES.get(file.get_slice(key).get_dtype())
        return None

    def take(self, key: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """One tensor; ModelUnavailable if it is missing or of another shape."""
        if key not in self._place:
            near = ", ".join(sorted(self._place)[:3])
            raise ModelUnavailable(
                f"model {self._name}: tensor {key} is missing; the checkpoint has "
                f"{len(self._place)} tensors: {near}, ..."
            )
        tensor: torch.Tensor = self._place[key].get_tensor(key)
        if tuple(tensor.shape) != shape:
            raise ModelUnavailable(
                f"model {self._name}: tensor {key} has shape {list(tensor.shape)}; "
                f"expected {list(shape)}"
            )
        self._taken.add(key)
        return tensor.to(dtype)

    def check_all_taken(self, *, ignored: frozenset[str]) -> None:
        """ModelUnavailable if the checkpoint holds tensors that nothing asked for."""
        left = sorted(
            key
            for key in self._place.keys() - self._taken - ignored
            if not key.endswith(_IGNORED_ENDINGS)
        )
        if left:
            raise ModelUnavailable(
                f"model {self._name}: {len(left)} unexpected tensors: {', '.join(left[:5])}"
            )


def choose_dtype(asked: str, config: ModelConfig, checkpoint: Checkpoint) -> torch.dtype:
    """The dtype to compute in: as asked, or the checkpoint's own.

    float16 runs as bfloat16: same size, the range of float32, and CPUs multiply it natively.
    """
    if asked != "auto":
        return _DTYPES[asked]
    own = checkpoint.dtype or config.dtype or "float32"
    return _DTYPES.get(own, torch.float32)


def load_weights(
    config: ModelConfig,
    checkpoint: Checkpoint,
    kernels: Kernels,
    dtype: torch.dtype,
    progress: StartUpProgress,
    quantization: Quantization = "none",
) -> DecoderWeights:
    """All weights, packed for `kernels`; at no time are more than one layer's held twice.

    quantization: of every linear layer, the head's too; the embedding stays as it is. A layer is
    quantised as it is read.
    """
    loader = _Loader(config, checkpoint, kernels, dtype, weight_packing(kernels, quantization))
    total_bytes = loader.total_bytes()
    with progress.phase("load weights", total_bytes=total_bytes) as on_bytes:
        layers = []
        for layer in range(config.num_layers):
            layers.append(loader.layer(layer))
            on_bytes(loader.layer_bytes())
        weights = loader.around(tuple(layers))
        on_bytes(total_bytes - loader.layer_bytes() * config.num_layers)
    return weights


class _Loader:
    def __init__(
        self,
        config: ModelConfig,
        checkpoint: Checkpoint,
        kernels: Kernels,
        dtype: torch.dtype,
        pack: PackWeight,
    ) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._kernels = kernels
        self._dtype = dtype
        self._pack = pack

    def layer_bytes(self) -> int:
        config = self._config
        heads = 2 * (config.num_heads + config.num_kv_heads) * config.head_dim
        per_hidden = heads + 3 * config.intermediate_size
        return per_hidden * config.hidden_size * self._dtype.itemsize

    def total_bytes(self) -> int:
        config = self._config
        ends = config.vocab_size * config.hidden_size * self._dtype.itemsize
        ends *= 1 if config.tied_embeddings else 2
        return self.layer_bytes() * config.num_layers + ends

    def layer(self, index: int) -> LayerWeights:
        config = self._config
        prefix = f"model.layers.{index}."
        hidden, inner = config.hidden_size, config.intermediate_size
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv = {f"{attention}q_proj": query, f"{attention}k_proj": key, f"{attention}v_proj": key}
        gate_up = {f"{mlp}gate_proj": inner, f"{mlp}up_proj": inner}
        output, down = {f"{attention}o_proj": hidden}, {f"{mlp}down_proj": hidden}
        return LayerWeights(
            input_norm=self._vector(prefix + "input_layernorm.weight", hidden),
            qkv=self._linear(qkv, hidden, biased=config.qkv_bias),
            qk_norm=self._qk_norm(attention) if config.qk_norm else None,
            output=self._linear(output, query, biased=config.output_bias),
            post_norm=self._vector(prefix + "post_attention_layernorm.weight", hidden),
            gate_up=self._linear(gate_up, hidden, biased=config.mlp_bias),
            down=self._linear(down, inner, biased=config.mlp_bias),
        )

    def around(self, layers: tuple[LayerWeights, ...]) -> DecoderWeights:
        """What stands before and behind the layers, and the check that nothing is left over."""
        config, take = self._config, self._checkpoint.take
        shape = (config.vocab_size, config.hidden_size)
        embedding = take("model.embed_tokens.weight", shape, self._dtype)
        head = embedding if config.tied_embeddings else take("lm_head.weight", shape, self._dtype)
        device = self._kernels.device
        weights = DecoderWeights(
            embedding=embedding.to(device),
            layers=layers,
            final_norm=self._vector("model.norm.weight", config.hidden_size),
            head=OutputHead(head.to(device), self._kernels, self._pack),
        )
        # Some writers save the head of a tied model too.
        spare = frozenset({"lm_head.weight"} if config.tied_embeddings else ())
        self._checkpoint.check_all_taken(ignored=spare)
        return weights

    def _linear(self, parts: Mapping[str, int], width: int, *, biased: bool) -> PackedWeight:
        weight = torch.cat(list(self._parts(parts, ".weight", (width,))))
        bias = torch.cat(list(self._parts(parts, ".bias", ()))) if biased else None
        device = self._kernels.device
        return self._pack(weight.to(device), None if bias is None else bias.to(device))

    def _parts(
        self, parts: Mapping[str, int], ending: str, tail: tuple[int, ...]
    ) -> Iterator[torch.Tensor]:
        for name, rows in parts.items():
            yield self._checkpoint.take(name + ending, (rows, *tail), self._dtype)

    def _qk_norm(self, attention: str) -> torch.Tensor:
        config = self._config
        query = self._vector(f"{attention}q_norm.weight", config.head_dim)
        key = self._vector(f"{attention}k_norm.weight", config.head_dim)
        heads = [query.expand(config.num_heads, -1), key.expand(config.num_kv_heads, -1)]
        return torch.cat(heads)

    def _vector(self, key: str, size: int) -> torch.Tensor:
        return self._checkpoint.take(key, (size,), self._dtype).clone().to(self._kernels.device)
