"""Changes of a replica's prefix cache for routers that are not ours, as vLLM publishes them."""
