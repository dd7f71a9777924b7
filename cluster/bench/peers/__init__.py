"""Compares Pagoda with other engines in turn, each in an environment of its own."""
