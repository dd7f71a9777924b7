"""Holds what runs in the peers' own environments, and therefore imports nothing of the house."""
