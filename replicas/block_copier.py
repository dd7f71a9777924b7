"""Moves whole blocks: from one to another, out to the host-memory tier and back in.

What lies in a host slot is what a block store keeps (kvstore.block_store.BlockLayout), so nobody
has to rearrange bytes between the tiers.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from replicas.batch import BlockMove, CopyBlock, CopyIn, CopyOut
from replicas.kv_cache import KvCache
from replicas.memory.host_buffer import HostBuffer

log = logging.getLogger(__name__)

# A byte array [layers, blocks, bytes]: numpy's on a CPU, where a copy of one block by torch's
# threads takes several times as long, torch's on a GPU.
Bytes = Any


class BlockCopier:
    """Carries out the moves of a batch, in order, in the stream of the step's own kernels."""

    def __init__(self, cache: KvCache) -> None:
        self._device = cache.device
        self._parts = [_as_bytes(part) for part in cache.parts()]
        self._is_pinned = False
        self._buffer: HostBuffer | None = None
        self._host_parts: list[Bytes] = []

    def bind_host_buffer(self, buffer: HostBuffer) -> None:
        """Where CopyOut and CopyIn find their slots; on a GPU its memory is pinned."""
        sizes = [part.shape[0] * part.shape[2] for part in self._parts]
        assert buffer.slot_bytes == sum(sizes), (buffer.slot_bytes, sizes)
        if self._device.type == "cuda":
            self._is_pinned = _pin(buffer)
        self._buffer = buffer
        self._host_parts = []
        start = 0
        for part, num_bytes in zip(self._parts, sizes, strict=True):
            rows = buffer.slots[:, start : start + num_bytes]
            own = rows.reshape(buffer.num_slots, part.shape[0], part.shape[2], copy=False)
            self._host_parts.append(own if self._device.type == "cpu" else torch.from_numpy(own))
            start += num_bytes

    def move(self, moves: Sequence[BlockMove]) -> Callable[[], float]:
        """Start the moves; calling what it returns waits for their end and gives their seconds."""
        if self._device.type == "cuda":
            return self._move_in_stream(moves)
        started = time.perf_counter()
        for move in moves:
            self._start(move, _copy_on_cpu)
        seconds = time.perf_counter() - started
        return lambda: seconds

    def close(self) -> None:
        """Let go of the cache and of the host buffer, which stays open."""
        if self._buffer is not None and self._is_pinned:
            torch.cuda.synchronize(self._device)
            _unpin(self._buffer)
        self._buffer = None
        self._parts, self._host_parts = [], []

    def _move_in_stream(self, moves: Sequence[BlockMove]) -> Callable[[], float]:
        begun = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begun.record()
        for move in moves:
            self._start(move, _copy_in_stream)
        ended.record()

        def wait() -> float:
            ended.synchronize()
            return float(begun.elapsed_time(ended)) / 1e3

        return wait

    def _start(self, move: BlockMove, copy: Callable[[Bytes, Bytes], None]) -> None:
        match move:
            case CopyBlock(source, target):
                for part in self._parts:
                    copy(part[:, target], part[:, source])
            case CopyOut(block, host_slot):
                for part, host in self._pairs():
                    copy(host[host_slot], part[:, block])
            case CopyIn(host_slot, block):
                for part, host in self._pairs():
                    copy(part[:, block], host[host_slot])

    def _pairs(self) -> Sequence[tuple[Bytes, Bytes]]:
        assert self._buffer is not None, "a move to or from host memory without a host buffer"
        return list(zip(self._parts, self._host_parts, strict=True))


def _as_bytes(part: torch.Tensor) -> Bytes:
    """[layers, blocks, ...] as bytes [layers, blocks, bytes of one block in one layer]."""
    flat = part.view(part.shape[0], part.shape[1], -1).view(torch.uint8)
    return flat.numpy() if part.device.type == "cpu" else flat


def _copy_on_cpu(target: Bytes, source: Bytes) -> None:
    np.copyto(target, source)


def _copy_in_stream(target: Bytes, source: Bytes) -> None:
    target.copy_(source, non_blocking=True)


def _pin(buffer: HostBuffer) -> bool:
    """Page-lock the buffer, so that copies run beside the kernels; False if the system refuses."""
    status = torch.cuda.cudart().cudaHostRegister(  # type: ignore[no-untyped-call]
        buffer.slots.ctypes.data, buffer.slots.nbytes, 0
    )
    if int(status) != 0:
        log.warning("host memory not pinned cuda_status=%d bytes=%d", status, buffer.slots.nbytes)
    return int(status) == 0


def _unpin(buffer: HostBuffer) -> None:
    torch.cuda.cudart().cudaHostUnregister(buffer.slots.ctypes.data)  # type: ignore[no-untyped-call]
