"""Counts the operations of a prefill, which decides between moving KV and computing it again."""

from kvstore.break_even import PrefillCost
from replicas.models.model_config import ModelConfig


def prefill_cost(model: ModelConfig) -> PrefillCost:
    """2 N S + 4 L H D S^2 for S tokens (lecture 10, exercise 4).

    N counts what every token goes through: embeddings are looked up, and the output head works on
    the last token alone.
    """
    query_size = model.num_heads * model.head_dim
    kv_size = model.num_kv_heads * model.head_dim
    attention = model.hidden_size * (2 * query_size + 2 * kv_size)
    feed_forward = 3 * model.hidden_size * model.intermediate_size
    return PrefillCost.of_model(
        num_parameters=model.num_layers * (attention + feed_forward),
        num_layers=model.num_layers,
        num_heads=model.num_heads,
        head_dim=model.head_dim,
    )
