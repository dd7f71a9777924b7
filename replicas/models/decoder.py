"""The lean decoder: all tokens of a step as one flat [T, d] through every linear layer.

Attention alone sees requests, through their block tables (selective batching, Orca; lecture 11,
11.3). It is written against the kernels' interface and nothing else.
"""

from collections.abc import Callable, Sequence

import torch

from replicas.batch import Batch
from replicas.kernels.fused import CanFuse, DecoderParts, DecoderStep, FusedLayers
from replicas.kernels.interface import AttentionShape, Kernels, LayerCache
from replicas.models.model_config import ModelConfig
from replicas.models.rotary import RotaryTable
from replicas.models.weights import DecoderWeights, LayerWeights
from replicas.runner import Pause

# Share of the layers after which the step is nearly done.
NEARLY = 7 / 8
_NO_PAUSE = Pause(lambda: None)


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
        fused = self._fuse()
        self._idle = [fused] if fused is not None else []
        self._goes_by_layers = fused is not None

    def logits(
        self,
        batch: Batch,
        token_ids: torch.Tensor,
        caches: Sequence[LayerCache],
        nearly_done: Callable[[], None],
        pause: Pause | None = None,
    ) -> torch.Tensor:
        """Logits [S, vocab] of the S tokens to sample; K and V go to `caches`.

        token_ids: [T] int64, all resolved. nearly_done is called once, before the last layers.
        pause: asked for between layers before that; in it another batch may be computed.
        """
        device = token_ids.device
        rotary = self._rotary.at(torch.from_numpy(batch.positions).to(device))
        last_tokens = torch.from_numpy(batch.sampled_after()).to(device)
        step = DecoderStep(batch, token_ids, rotary, last_tokens, caches)
        compute = self._by_layers if self._goes_by_layers else self._by_operation
        x = compute(step, nearly_done, pause)
        if not batch.samples:
            return x.new_empty(0, self._config.vocab_size)
        return self._weights.head.logits(x)

    def _fuse(self) -> FusedLayers | None:
        if not isinstance(self._kernels, CanFuse):
            return None
        weights = self._weights
        return self._kernels.fuse(
            DecoderParts(
                embedding=weights.embedding,
                layers=weights.layers,
                final_norm=weights.final_norm,
                eps=self._config.rms_norm_eps,
                inner_size=self._config.intermediate_size,
                shapes=self._shapes,
            )
        )

    def _by_layers(
        self,
        step: DecoderStep,
        nearly_done: Callable[[], None],
        pause: Pause | None,
    ) -> torch.Tensor:
        """[S, d], normed: many layers in one call."""
        # Each of them holds one step at a time, and a step that is paused keeps its own.
        fused = self._idle.pop() if self._idle else self._fuse()
        assert fused is not None
        try:
            fused.start(step)
            first, wanted = 0, torch.from_numpy((pause or _NO_PAUSE).wanted)
            while (
                first := fused.run_until(first, self._nearly_after, wanted)
            ) < self._nearly_after:
                assert pause is not None
                pause.take()
            nearly_done()
            return fused.run(self._nearly_after, len(self._weights.layers))
        finally:
            self._idle.append(fused)

    def _by_operation(
        self,
        step: DecoderStep,
        nearly_done: Callable[[], None],
        pause: Pause | None,
    ) -> torch.Tensor:
        """[S, d], normed: one call of the kernels after another."""
        kernels, weights, eps = self._kernels, self._weights, self._config.rms_norm_eps
        batch = step.batch
        plans = {
            shape: kernels.plan_attention(batch, shape, self._block_size)
            for shape in dict.fromkeys(self._shapes)
        }
        residual = weights.embedding.index_select(0, step.token_ids)
        x = kernels.rms_norm(residual, weights.layers[0].input_norm, eps)
        final = len(weights.layers) - 1
        for index, layer in enumerate(weights.layers):
            if index == self._nearly_after:
                nearly_done()
            elif pause is not None and 0 < index < self._nearly_after:
                pause.take()
            shape = self._shapes[index]
            x = self._attend(x, layer, step.rotary, step.caches[index], shape, plans[shape])
            if index == final:
                # From here on only the rows that sample matter to anyone.
                if not batch.samples:
                    break
                x = x.index_select(0, step.last_tokens)
                residual = residual.index_select(0, step.last_tokens)
            following = (
                weights.final_norm if index == final else weights.layers[index + 1].input_norm
            )
            x = kernels.linear(x, layer.output)
            x, residual = kernels.add_rms_norm(x, residual, layer.post_norm, eps)
            x = kernels.linear(kernels.silu_mul(kernels.linear(x, layer.gate_up)), layer.down)
            x, residual = kernels.add_rms_norm(x, residual, following, eps)
        return x

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
