"""A request that two replicas share: who computes what, and how the blocks cross."""
