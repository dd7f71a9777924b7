"""A handle on an engine that runs elsewhere: in a process of its own, or in a thread.

The core is a process because each of a step's small calls must win the GIL back: beside a busy
event loop in the same process a 13 ms step was measured to take 1,457 ms (DESIGN 3).
"""

import logging
import os
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Protocol

from kvstore.block_store import BlockLayout
from replicas.assembly import Outside, build_engine
from replicas.config import EngineConfig
from replicas.core_messages import Close, CoreFailed, CorePhase, CoreReady, CoreSetUp
from replicas.engine_commands import Cancel, Command, FinishChoice, Prefetch, Submit, Watch
from replicas.engine_info import EngineInfo
from replicas.engine_loop import EngineLoop
from replicas.memory.block_mover import BlockMover, MoverJob, NoMover
from replicas.memory.host_buffer import HostBuffer
from replicas.request import EngineRequest
from replicas.step_output import StepOutput
from replicas.store_mover import StoreAccess, StoreMover
from replicas.team_cores import CORES_VARIABLE, cores_to_bind, num_allowed_cores

log = logging.getLogger(__name__)

OnOutput = Callable[[StepOutput], None]
OnExit = Callable[[str], None]

CLOSE_TIMEOUT_S = 10.0
CORE_MODULE = "replicas.engine_process"


class EngineStartError(RuntimeError):
    """The engine could not be built; the message says why."""


class EngineClient(Protocol):
    """Commands to an engine; none of them blocks. Its outputs come through callbacks."""

    info: EngineInfo

    def submit(self, request: EngineRequest) -> None:
        """Serve a request; its entries come with the outputs, the first says it was admitted."""
        ...

    def prefetch(self, request: EngineRequest) -> None:
        """Begin to fetch the blocks of a request that will be handed over here."""
        ...

    def cancel(self, request_id: str, attempt: int) -> None:
        """End a request whose client left."""
        ...

    def finish_choice(self, request_id: str, attempt: int, choice: int) -> None:
        """End one choice normally, for a stop string in its text."""
        ...

    def watch(self, seconds: float) -> None:
        """Let outputs carry views of what happens, for so long from now on."""
        ...

    def close(self) -> None:
        """End the engine; no callback comes after this returns."""
        ...


class _CommandSender(ABC):
    """The commands of EngineClient, for a subclass that can send one."""

    def submit(self, request: EngineRequest) -> None:
        """Serve a request."""
        self._send(Submit(request))

    def prefetch(self, request: EngineRequest) -> None:
        """Begin to fetch the blocks of a request that will be handed over here."""
        self._send(Prefetch(request))

    def cancel(self, request_id: str, attempt: int) -> None:
        """End a request whose client left."""
        self._send(Cancel(request_id, attempt))

    def finish_choice(self, request_id: str, attempt: int, choice: int) -> None:
        """End one choice normally, for a stop string in its text."""
        self._send(FinishChoice(request_id, attempt, choice))

    def watch(self, seconds: float) -> None:
        """Let outputs carry views of what happens, for so long from now on."""
        self._send(Watch(seconds))

    @abstractmethod
    def _send(self, command: Command) -> None: ...


class ProcessEngine(_CommandSender):
    """An engine in a process of its own, which dies with this one.

    on_output: called from a reader thread with every step's output. on_exit: called once from
    that thread, with a message, if the core ends without having been told to. store: where this
    process keeps blocks for the core; the bytes are in memory that both share. core_module: what
    the core's process runs; it calls replicas.engine_process.main.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        on_output: OnOutput,
        on_exit: OnExit,
        store: StoreAccess | None = None,
        core_module: str = CORE_MODULE,
    ) -> None:
        self._on_output = on_output
        self._on_exit = on_exit
        self._closing = False
        self._send_lock = threading.Lock()
        self._mover: StoreMover | None = None
        # Told to the core rather than found there, where OpenMP may have bound the first thread.
        config = replace(config, num_threads=config.num_threads or num_allowed_cores())
        # Pages of it are taken from the system when they are first written to.
        shared = HostBuffer.create(num_slots=1, slot_bytes=max(1, config.swap_space_bytes))
        with closing(shared):
            self._connection, self._process = _spawn_core(core_module, config, shared.fd, store)
            try:
                self.info = self._await_ready()
                self._open_store(store, shared.fd)
            except BaseException:
                self._kill()
                raise
        self._reader = threading.Thread(target=self._read, name="engine-reader", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id of the core."""
        return self._process.pid

    def close(self) -> None:
        """End the core; killed if it does not end by itself."""
        self._closing = True
        try:
            with self._send_lock:
                self._connection.send(Close())
            self._process.wait(CLOSE_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            log.warning("engine core did not close by itself pid=%d", self.pid)
        self._kill()
        if threading.current_thread() is not self._reader:
            self._reader.join()
        if self._mover is not None:
            self._mover.close()
        self._connection.close()

    def _send(self, command: Command) -> None:
        try:
            with self._send_lock:
                self._connection.send(command)
        except OSError:
            # The core is gone: the reader thread is about to say so to everybody.
            log.warning("engine core is gone, command dropped pid=%d", self.pid)

    def _open_store(self, store: StoreAccess | None, host_fd: int) -> None:
        layout, num_slots = self.info.layout, self.info.num_host_slots
        if store is None or layout is None:
            return
        if not num_slots:
            log.warning("store unused: swap_space_bytes holds no block of the model")
            return
        buffer = HostBuffer.attach(
            os.dup(host_fd), num_slots=num_slots, slot_bytes=layout.payload_bytes
        )
        self._mover = _open_mover(store, buffer, layout, self._send)

    def _await_ready(self) -> EngineInfo:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError) as error:
                code = self._process.wait()
                raise EngineStartError(f"the engine core ended with status {code}") from error
            match message:
                case CorePhase(name, seconds):
                    log.info("engine phase=%s seconds=%.2f", name, seconds)
                case CoreReady(info):
                    return info
                case CoreFailed(reason):
                    raise EngineStartError(reason)

    def _read(self) -> None:
        reason = ""
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                break
            if isinstance(message, CoreFailed):
                reason = message.reason
            elif isinstance(message, MoverJob):
                assert self._mover is not None, "a job without a store"
                self._mover.take(message)
            elif not self._closing:
                self._on_output(message)
        status = self._process.wait()
        if not self._closing:
            self._on_exit(reason or f"the engine core ended with status {status}")

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()


class ThreadEngine(_CommandSender):
    """An engine in a thread of this process: for tests and for machines without a spare core."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        on_output: OnOutput,
        on_exit: OnExit,
        store: StoreAccess | None = None,
    ) -> None:
        self._store = store
        self._mover: StoreMover | None = None
        self._buffer: HostBuffer | None = None
        self._engine, self.info = build_engine(
            config,
            outside=Outside(
                make_buffer=self._make_buffer,
                make_mover=self._make_mover,
                fetch_timeout_s=store.fetch_timeout_s if store is not None else 0.0,
            ),
        )
        self._loop = EngineLoop(self._engine, on_output)
        self._on_exit = on_exit
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the engine after the step under way."""
        self._loop.stop()
        self._thread.join()
        self._engine.close()
        if self._mover is not None:
            self._mover.close()
        elif self._buffer is not None:
            self._buffer.close()

    def _send(self, command: Command) -> None:
        self._engine.inbox.put(command)

    def _make_buffer(self, num_slots: int, slot_bytes: int) -> HostBuffer:
        self._buffer = HostBuffer.create(num_slots=num_slots, slot_bytes=slot_bytes)
        return self._buffer

    def _make_mover(self, layout: BlockLayout, buffer: HostBuffer) -> BlockMover:
        if self._store is None:
            return NoMover()
        self._mover = _open_mover(self._store, buffer, layout, self._send)
        return self._mover

    def _run(self) -> None:
        try:
            self._loop.run()
        except Exception as error:  # noqa: BLE001 - whatever broke the engine ends it for everybody
            log.exception("engine failed")
            self._on_exit(f"the engine failed: {type(error).__name__}")


def start_engine(
    config: EngineConfig,
    *,
    on_output: OnOutput,
    on_exit: OnExit,
    store: StoreAccess | None = None,
) -> EngineClient:
    """Start a core process and wait until it can serve; EngineStartError if it cannot."""
    return ProcessEngine(config, on_output=on_output, on_exit=on_exit, store=store)


def _open_mover(
    store: StoreAccess, buffer: HostBuffer, layout: BlockLayout, send: Callable[[Command], None]
) -> StoreMover:
    try:
        opened = store.open(layout)
    except ValueError as error:
        buffer.close()
        raise EngineStartError(f"block store: {error}") from error
    handoffs = store.open_handoffs(opened) if store.open_handoffs is not None else None
    return StoreMover(opened, buffer, answer=send, handoffs=handoffs)


def _spawn_core(
    core_module: str, config: EngineConfig, host_fd: int, store: StoreAccess | None
) -> tuple[Connection, "subprocess.Popen[bytes]"]:
    ours, theirs = Pipe()
    fds = (theirs.fileno(), host_fd)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", core_module, *map(str, fds)],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            env=_core_environment(config),
        )
    fetch_timeout_s = store.fetch_timeout_s if store is not None else 0.0
    ours.send(CoreSetUp(config, store is not None, fetch_timeout_s))
    return ours, process


def _core_environment(config: EngineConfig) -> dict[str, str]:
    """What OpenMP must find before torch is loaded; the parent's own thread count is not meant.

    A thread that waits for the others of a parallel region spins by default, on a core that the
    other thread, or whoever serves HTTP, may be waiting for: beside one other busy process a step
    took 4 to 20 times as long as with threads that go to sleep. 5,000 rounds are about 50
    microseconds: longer than from one operation of a step to the next.
    """
    return {
        "GOMP_SPINCOUNT": "5000",
        **os.environ,
        "OMP_NUM_THREADS": str(config.num_threads),
        CORES_VARIABLE: cores_to_bind(config.num_threads, os.environ),
        "PYTHONUNBUFFERED": "1",
    }
