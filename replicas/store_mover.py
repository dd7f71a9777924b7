"""Moves blocks between host memory and a block store, in threads beside the engine.

Implements BlockMover. It lives where the store's client lives: in the parent of an engine core,
over memory that both share, or in the engine's own process for tests and small machines.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kvstore.block_store import BlockLayout, BlockStore, StoredBlock, WantedBlock
from kvstore.block_transport import BlockTransport
from kvstore.handoff_tables import HandoffTables
from replicas.handoff_mover import HandoffMover, failed
from replicas.memory.block_mover import (
    FetchDone,
    FetchJob,
    LookedUp,
    LookUpJob,
    MoverAnswer,
    MoverJob,
    StoreDone,
    StoreJob,
    StoreSpeeds,
)
from replicas.memory.host_buffer import HostBuffer
from replicas.memory.host_tier import HostBlock

log = logging.getLogger(__name__)

NUM_READERS = 2


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """How an engine's owner gets at the block store.

    open: the store of a layout; it must never raise StoreUnavailable (kvstore.failsafe_store), and
    belongs to whoever opened it. fetch_timeout_s: longest that a request waits for it.
    open_handoffs: what hand-offs need, for a store that was opened; None where there are none.
    """

    open: Callable[[BlockLayout], BlockStore]
    fetch_timeout_s: float
    open_handoffs: "Callable[[BlockStore], HandoffAccess] | None" = None


@dataclass(frozen=True, slots=True)
class HandoffAccess:
    """tables: of block tables. open_transports: ways for the blocks themselves, those that a reader
    tries first in front, over the slots of a host buffer."""

    tables: HandoffTables
    open_transports: Callable[[HostBuffer], Sequence[BlockTransport]]


class StoreMover:
    """Jobs in the order in which they come: writes in one thread, questions and reads in others.

    store, buffer: closed with the mover. answer: called from any of its threads. handoffs: without
    it every hand-off is refused.
    """

    has_store = True

    def __init__(
        self,
        store: BlockStore,
        buffer: HostBuffer,
        *,
        answer: Callable[[MoverAnswer], None],
        handoffs: HandoffAccess | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert buffer.slot_bytes == store.layout.payload_bytes, buffer.slot_bytes
        self._store = store
        self._buffer = buffer
        self._answer = answer
        self._clock = clock
        self._writer = ThreadPoolExecutor(1, "store-writer")
        self._readers = ThreadPoolExecutor(NUM_READERS, "store-reader")
        self._lock = threading.Lock()
        self._is_closed = False
        self._handoffs: HandoffMover | None = None
        if handoffs is not None:
            self._handoffs = HandoffMover(
                handoffs.open_transports(buffer),
                handoffs.tables,
                layout=store.layout,
                buffer=buffer,
                answer=answer,
                clock=clock,
            )

    def take(self, job: MoverJob) -> None:
        """Queue a job; one that comes after `close` is dropped, with the engine that sent it."""
        with self._lock:
            if self._is_closed:
                return
            if isinstance(job, StoreJob):
                self._writer.submit(self._do, job)
            elif isinstance(job, LookUpJob | FetchJob):
                self._readers.submit(self._do, job)
            elif self._handoffs is not None:
                self._handoffs.take(job)
            else:
                self._answer(failed(job))

    def close(self) -> None:
        """Let the jobs in hand end, forget the others, close store and buffer."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        for threads in (self._writer, self._readers):
            threads.shutdown(cancel_futures=True)
        if self._handoffs is not None:
            self._handoffs.close()
        self._store.close()
        self._buffer.close()

    def _do(self, job: StoreJob | LookUpJob | FetchJob) -> None:
        started_at = self._clock()
        num_blocks = 0
        try:
            num_blocks = self._work(job)
        except Exception:
            # Whatever it was, the engine waits for an answer, and blocks that did not come are a
            # miss.
            log.exception("store job failed kind=%s", type(job).__name__)
        match job:
            case StoreJob(job_id):
                self._answer(StoreDone(job_id, num_blocks, self._speeds()))
            case LookUpJob(job_id):
                self._answer(LookedUp(job_id, num_blocks, self._speeds()))
            case FetchJob(job_id):
                seconds = self._clock() - started_at
                self._answer(FetchDone(job_id, num_blocks, seconds, self._speeds()))

    def _work(self, job: StoreJob | LookUpJob | FetchJob) -> int:
        """Blocks that were stored, found or fetched."""
        match job:
            case StoreJob(_, blocks):
                return self._store.put_many([self._stored(block) for block in blocks]).num_held
            case LookUpJob(_, names):
                return self._store.contains_prefix(names)
            case FetchJob(_, blocks, timeout_s):
                wanted = [WantedBlock(block.name, block.token_ids) for block in blocks]
                fetched = self._store.get_many(wanted, timeout_s=timeout_s).blocks
                return self._place([block.slot for block in blocks], fetched)

    def _stored(self, block: HostBlock) -> StoredBlock:
        half_bytes = self._store.layout.half_bytes
        slot = self._buffer.slot(block.slot)
        keys, values = slot[:half_bytes], slot[half_bytes:]
        return StoredBlock(block.name, block.parent, block.token_ids, keys, values)

    def _place(self, slots: Sequence[int], blocks: Sequence[StoredBlock]) -> int:
        half_bytes = self._store.layout.half_bytes
        for slot, block in zip(slots, blocks, strict=False):
            target = self._buffer.slot(slot)
            target[:half_bytes] = memoryview(block.keys).cast("B")
            target[half_bytes:] = memoryview(block.values).cast("B")
        return len(blocks)

    def _speeds(self) -> StoreSpeeds:
        stats = self._store.stats()
        return StoreSpeeds(stats.put_bytes_per_s, stats.fetch_bytes_per_s, stats.round_trip_s)


class ForwardingMover:
    """For an engine core: hands every job to the process beside it. send: never blocks."""

    has_store = True

    def __init__(self, send: Callable[[MoverJob], None]) -> None:
        self._send = send

    def take(self, job: MoverJob) -> None:
        """Hand over a job."""
        self._send(job)
