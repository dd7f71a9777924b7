"""Block stores for tests of engines: whole, slow, forgetful, and shared by several engines."""

import threading
import time
from collections.abc import Callable, Sequence

from kvstore.block_store import BlockLayout, BlockStore, Fetched, PutReport, StoredBlock
from kvstore.memory_store import Memory, memory_store
from replicas.engine import Engine
from replicas.memory.block_mover import MoverAnswer
from replicas.memory.host_buffer import HostBuffer
from replicas.simulated_runner import SimulatedRunner
from replicas.store_mover import HandoffAccess, StoreMover
from tests.replicas.engine_harness import BLOCK_SIZE, ManualClock, engine, run, submit, tokens

# The token budget of a step of the harness's engines, and the longest wait of a test.
CHUNK = 32
PATIENCE_S = 5.0


def simulated_layout() -> BlockLayout:
    """Of the blocks that the harness's engines hold."""
    return SimulatedRunner(num_blocks=1, block_size=BLOCK_SIZE, max_num_seqs=1).layout


def shared_memory_store(memory: Memory, *, layout: BlockLayout | None = None) -> BlockStore:
    """One client of a store that others share; `memory` is the server."""
    return memory_store(memory, layout=layout or simulated_layout(), clock=time.monotonic)


class Engines:
    """Engines over one memory, each with a store client of its own; made one after another."""

    def __init__(
        self,
        open_store: Callable[[], BlockStore],
        *,
        num_host_slots: int = 64,
        open_handoffs: Callable[[BlockStore], HandoffAccess] | None = None,
    ) -> None:
        self._open_store = open_store
        self._num_host_slots = num_host_slots
        self._open_handoffs = open_handoffs
        self.movers: list[StoreMover] = []

    def start(self, **overrides: object) -> Engine:
        """A new replica, empty but for the store. Its clock is the real one."""
        store = self._open_store()
        host = HostBuffer.create(
            num_slots=self._num_host_slots, slot_bytes=store.layout.payload_bytes
        )
        made: list[Engine] = []

        def answer(news: MoverAnswer) -> None:
            made[0].inbox.put(news)

        handoffs = self._open_handoffs(store) if self._open_handoffs is not None else None
        mover = StoreMover(store, host, answer=answer, handoffs=handoffs)
        self.movers.append(mover)
        clock = RealClock()
        values = {"store_write_back": "always", "async_scheduling": False, **overrides}
        made.append(
            engine(
                mover=mover,
                host=host,
                clock=clock,
                num_host_slots=self._num_host_slots,
                **values,  # type: ignore[arg-type]
            )
        )
        return made[0]

    def close(self) -> None:
        for mover in self.movers:
            mover.close()


class RealClock(ManualClock):
    """Seconds that pass by themselves."""

    def __call__(self) -> float:
        return time.monotonic()


def serve(target: Engine, *requests: object) -> dict[tuple[str, int], list[int]]:
    """Their tokens; returns once the engine rests and its writes have been acknowledged."""
    submit(target, *requests)  # type: ignore[arg-type]
    found = tokens(run(target))
    settle(target)
    return found


def settle(target: Engine, *, timeout_s: float = 10.0) -> None:
    """Wait for the answers to every store job."""
    deadline = time.monotonic() + timeout_s
    while target.stats.tiers.num_pinned_host_slots:
        assert time.monotonic() < deadline, "a store job is not answered"
        target.inbox.wait(0.01)
        target.step()
        target.check()


class HookedStore:
    """Another store, with something done before each call: a delay, an error, a flipped byte."""

    def __init__(self, store: BlockStore, *, before: Callable[[str], None]) -> None:
        self._store = store
        self._before = before
        self.layout = store.layout

    def contains_prefix(self, names: Sequence[bytes], *, lease: str | None = None) -> int:
        self._before("contains_prefix")
        return self._store.contains_prefix(names, lease=lease)

    def get_many(self, wanted: Sequence, *, timeout_s: float | None = None) -> Fetched:
        self._before("get_many")
        return self._store.get_many(wanted, timeout_s=timeout_s)

    def put_many(self, blocks: Sequence[StoredBlock]) -> PutReport:
        self._before("put_many")
        return self._store.put_many(blocks)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


class Gate:
    """Holds back whoever calls while it is shut."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self._is_open.set()

    def shut(self) -> None:
        self._is_open.clear()

    def open(self) -> None:
        self._is_open.set()

    def __call__(self, _call: str) -> None:
        assert self._is_open.wait(10.0), "the gate was never opened"
