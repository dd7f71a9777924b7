"""Weights and activations as codes of int8: what the numbers are, whoever multiplies them."""
