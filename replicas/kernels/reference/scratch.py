"""Memory for gathered keys and values that every layer and every step uses again.

A fresh large tensor costs page faults; a used one lies in the processor's cache already.
"""

import torch


class Scratch:
    """Two buffers that grow to the largest size ever asked for."""

    def __init__(self) -> None:
        self._keys = torch.empty(0)
        self._values = torch.empty(0)

    def pair(self, shape: tuple[int, int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Two tensors of `shape`, whose contents hold until the next call."""
        num_elements = shape[0] * shape[1]
        if self._keys.dtype is not dtype or self._keys.numel() < num_elements:
            self._keys = torch.empty(num_elements, dtype=dtype)
            self._values = torch.empty(num_elements, dtype=dtype)
        return self._keys[:num_elements].view(shape), self._values[:num_elements].view(shape)
