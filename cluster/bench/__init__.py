"""Measures what replicas do together; each part runs by `python -m cluster.bench NAME`."""
