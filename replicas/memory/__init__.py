"""KV blocks beyond the allocator: what requests hold, and where blocks go when they must leave."""
