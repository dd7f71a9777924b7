"""How much memory the code needs, by its own formulas and by what its processes were seen to take.

What was seen: `serve deploy` of the overlay cpu-demo on one machine (SmolLM2-135M, CPU kernels),
resident sizes in MiB: raylet and its agents 310, HAProxy and its manager 160, a gateway 190, a
replica's actor 150, its engine 930 with 260 of weights in it. The figures below leave room above.
"""

import torch

from cluster.config import ClusterConfig
from replicas.kv_cache import block_bytes
from replicas.models.model_config import ModelConfig

MIB = 2**20
GIB = 2**30
RAY_NODE_BYTES = 700 * MIB
GATEWAY_BYTES = 400 * MIB
REPLICA_ACTOR_BYTES = 300 * MIB
ENGINE_BYTES = 900 * MIB
# A CUDA context, its libraries and pinned staging buffers.
CUDA_ENGINE_BYTES = 4 * GIB

# What decides about memory in the configs of the models that overlays name.
MODELS = {
    "demo": {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen3-8B": {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": False,
    },
}
BYTES_EACH = torch.bfloat16.itemsize


def shape(spec: str) -> ModelConfig:
    """The model as the engine reads its config."""
    values = {**MODELS[spec], "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu"}
    return ModelConfig.from_values(values, name=spec)


def weight_bytes(spec: str) -> int:
    """All weights in bfloat16."""
    model = MODELS[spec]
    hidden, inner, vocab = model["hidden_size"], model["intermediate_size"], model["vocab_size"]
    queries = model["num_attention_heads"] * model["head_dim"]
    keys = model["num_key_value_heads"] * model["head_dim"]
    layer = hidden * (2 * queries + 2 * keys) + 3 * hidden * inner + 2 * hidden
    embeddings = vocab * hidden * (1 if model["tie_word_embeddings"] else 2)
    return BYTES_EACH * (layer * model["num_hidden_layers"] + embeddings)


def token_bytes(spec: str) -> int:
    """K and V of one token in all layers."""
    return block_bytes(shape(spec), 1, torch.bfloat16)


def replica_bytes(spec: str, config: ClusterConfig) -> int:
    """Host memory of one replica: its actor, its engine, what the engine holds."""
    engine = config.engine
    if config.replica.num_gpus:
        # Weights pass through on their way to the GPU; the cache lies there.
        held = CUDA_ENGINE_BYTES + weight_bytes(spec) + engine.swap_space_bytes
        return REPLICA_ACTOR_BYTES + ENGINE_BYTES + held
    assert engine.kv_cache_memory_bytes, "a share of the node's RAM would take no heed of the pod"
    held = weight_bytes(spec) + engine.kv_cache_memory_bytes + engine.swap_space_bytes
    return REPLICA_ACTOR_BYTES + ENGINE_BYTES + held


def worker_bytes(spec: str, config: ClusterConfig, *, num_replicas: int, num_gateways: int) -> int:
    """Host memory of a worker pod with so many of each."""
    on_ray = RAY_NODE_BYTES + config.ray.object_store_memory_bytes
    buffers = num_replicas * 2 * config.store.store_in_flight_bytes
    gateways = num_gateways * GATEWAY_BYTES
    return on_ray + gateways + buffers + num_replicas * replica_bytes(spec, config)
