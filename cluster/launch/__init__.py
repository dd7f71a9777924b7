"""Starts, watches and ends everything that one machine needs to serve a model."""
