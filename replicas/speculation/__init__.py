"""Speculative decoding: guesses several tokens of a request, and has one step verify them all."""
