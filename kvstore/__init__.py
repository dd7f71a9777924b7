"""Blocks outside the engine, found by name: hashes, protocols, stores."""
