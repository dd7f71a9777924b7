"""The engine's own benchmark: `python -m replicas.bench`, in one process, without HTTP."""
