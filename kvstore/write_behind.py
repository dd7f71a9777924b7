"""Takes blocks off an engine's hands at once and writes them to a store in a thread of its own.

An engine must not wait for a store, so what does not fit into the bounded line is dropped and
counted: a block that is not stored costs a prefill some day, a step that waits costs every request.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from kvstore.block_store import BlockStore, StoredBlock

log = logging.getLogger(__name__)


class WriteBehind:
    """A line of blocks in front of a store; safe from any thread.

    max_bytes: most K and V in the line and in hand. batch_blocks: most blocks of one put_many.
    """

    def __init__(self, store: BlockStore, *, max_bytes: int, batch_blocks: int = 64) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._batch_blocks = batch_blocks
        self._has_news = threading.Condition()
        self._line: deque[StoredBlock] = deque()
        self._num_held = 0
        self._num_dropped = 0
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="store-writer", daemon=True)
        self._thread.start()

    @property
    def num_dropped(self) -> int:
        """Blocks that found no room in the line, so far."""
        return self._num_dropped

    @property
    def num_waiting(self) -> int:
        """Blocks in the line and in hand."""
        return self._num_held

    def offer(self, blocks: Sequence[StoredBlock]) -> int:
        """Line up the first blocks for which there is room; how many. Never waits.

        Their buffers must stay as they are until `flush` has returned True.
        """
        block_bytes = self._store.layout.payload_bytes
        with self._has_news:
            room = max(0, self._max_bytes // block_bytes - self._num_held)
            taken = blocks[: 0 if self._is_closing else room]
            self._line.extend(taken)
            self._num_held += len(taken)
            self._has_news.notify_all()
            num_dropped = len(blocks) - len(taken)
            if num_dropped and not self._num_dropped:
                log.warning("store is behind max_bytes=%d; dropping blocks", self._max_bytes)
            self._num_dropped += num_dropped
        return len(taken)

    def flush(self, *, timeout_s: float) -> bool:
        """Wait until everything in the line was put; False if that takes longer."""
        return self._wait_until(lambda: self._num_held == 0, timeout_s)

    def close(self) -> None:
        """Forget the line and end the thread, once what is in hand was put. The store stays."""
        with self._has_news:
            self._is_closing = True
            self._num_held -= len(self._line)
            self._line.clear()
            self._has_news.notify_all()
        self._thread.join()

    def _wait_until(self, holds: Callable[[], bool], timeout_s: float | None) -> bool:
        with self._has_news:
            return self._has_news.wait_for(holds, timeout_s)

    def _work(self) -> None:
        while True:
            self._wait_until(lambda: bool(self._line) or self._is_closing, None)
            if self._is_closing:
                return
            with self._has_news:
                batch = [
                    self._line.popleft() for _ in range(min(len(self._line), self._batch_blocks))
                ]
            try:
                self._store.put_many(batch)
            finally:
                with self._has_news:
                    self._num_held -= len(batch)
                    self._has_news.notify_all()
