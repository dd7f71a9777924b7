"""Binds the parts: Ray Serve, HTTP and gRPC live here and nowhere else."""
