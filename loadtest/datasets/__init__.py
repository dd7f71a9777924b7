"""Reads the request traces and prompt sets that people publish into programs of calls."""

from loadtest.datasets.registry import DATASET_NAMES, open_dataset
from loadtest.datasets.shaping import LengthShaping

__all__ = ["DATASET_NAMES", "LengthShaping", "open_dataset"]
