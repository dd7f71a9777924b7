"""The lean decoder: all tokens of a step as one flat [T, d] through every linear layer.

Attention alone sees requests, through their block tables (selective batching, Orca; lecture 11,
11.3). It is written against the kernels' interface and nothing else.
"""

from collections.abc import Callable, Sequence

import torch

from replicas.batch import Batch
from replicas.kernels.interface import AttentionShape, Kernels, LayerCache
from replicas.models.model_config import ModelConfig
from replicas.models.rotary import RotaryTable
from replicas.models.weights import DecoderWeights, LayerWeights

# Share of the layers after which the step is nearly done.
NEARLY = 7 / 8


class Decoder:
    """A model of the Llama family, ready to compute batches."""

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        kernels: Kernels,
        rotary: RotaryTable,
        *,
        block_size: int,
    ) -> None:
        self._config = config
        self._weights = weights
        self._kernels = kernels
        self._rotary = rotary
        self._block_size = block_size
        self._shapes = [attention_shape(config, window) for window in config.windows]
        self._nearly_after = int(len(weights.layers) * NEARLY)

    def logits(
        self,
        batch: Batch,
        token_ids: torch.Tensor,
        caches: Sequence[LayerCache],
        nearly_done: Callable[[], None],
    ) -> torch.Tensor:
        """Next-token logits [S, vocab] of the S rows that sample; K and V go to `caches`.

        token_ids: [T] int64, all resolved. nearly_done is called once, before the last layers.
        """
        kernels, weights, eps = self._kernels, self._weights, self._config.rms_norm_eps
        device = token_ids.device
        rotary = self._rotary.at(torch.from_numpy(batch.positions).to(device))
        plans = {
            shape: kernels.plan_attention(batch, shape, self._block_size)
            for shape in dict.fromkeys(self._shapes)
        }
        last_tokens = _last_tokens(batch).to(device)
        residual = weights.embedding.index_select(0, token_ids)
        x = kernels.rms_norm(residual, weights.layers[0].input_norm, eps)
        final = len(weights.layers) - 1
        for index, layer in enumerate(weights.layers):
            if index == self._nearly_after:
                nearly_done()
            shape = self._shapes[index]
            x = self._attend(x, layer, rotary, caches[index], shape, plans[shape])
            if index == final:
                # From here on only the rows that sample matter to anyone.
                if not batch.samples:
                    break
                x, residual = x.index_select(0, last_tokens), residual.index_select(0, last_tokens)
            following = (
                weights.final_norm if index == final else weights.layers[index + 1].input_norm
            )
            x = kernels.linear(x, layer.output)
            x, residual = kernels.add_rms_norm(x, residual, layer.post_norm, eps)
            x = kernels.linear(kernels.silu_mul(kernels.linear(x, layer.gate_up)), layer.down)
            x, residual = kernels.add_rms_norm(x, residual, following, eps)
        else:
            return weights.head.logits(x)
        return x.new_empty(0, self._config.vocab_size)

    def _attend(
        self,
        x: torch.Tensor,
        layer: LayerWeights,
        rotary: tuple[torch.Tensor, torch.Tensor],
        cache: LayerCache,
        shape: AttentionShape,
        plan: object,
    ) -> torch.Tensor:
        kernels = self._kernels
        qkv = kernels.linear(x, layer.qkv).view(len(x), -1, shape.head_dim)
        qk = qkv[:, : shape.num_heads + shape.num_kv_heads]
        if layer.qk_norm is not None:
            qk = kernels.rms_norm(qk, layer.qk_norm, self._config.rms_norm_eps)
        v = qkv[:, shape.num_heads + shape.num_kv_heads :]
        q = kernels.rotate_and_store(qk, v, rotary, cache, plan)
        return kernels.attention(q, cache, shape, plan)


def attention_shape(config: ModelConfig, window: int) -> AttentionShape:
    """The sizes of an attention layer of this model with this window."""
    return AttentionShape(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        scale=config.head_dim**-0.5,
        window=window,
    )


def _last_tokens(batch: Batch) -> torch.Tensor:
    """[S] int64: where in the flat batch the last token of each sampling row lies."""
    ends = batch.query_start[1:]
    return torch.tensor([int(ends[sample.row]) - 1 for sample in batch.samples], dtype=torch.int64)
