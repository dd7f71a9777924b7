"""The engine core's process: `python -m replicas.engine_process FD HOST_FD`, from ProcessEngine.

FD: the connection to the parent. HOST_FD: memory for the host tier, shared with it.
"""

import logging
import os
import signal
import sys
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue

from replicas.assembly import BuildEngine, Outside, build_engine
from replicas.core_messages import Close, CoreFailed, CorePhase, CoreReady
from replicas.engine_commands import Inbox
from replicas.engine_loop import EngineLoop
from replicas.memory.block_mover import BlockMover, NoMover
from replicas.memory.host_buffer import HostBuffer
from replicas.store_mover import ForwardingMover

log = logging.getLogger(__name__)

# The thread that computes gives the GIL away at every kernel; when the planning thread holds it,
# the default of 5 ms would be a third of a decode step.
SWITCH_INTERVAL_S = 0.0001


def main(build: BuildEngine = build_engine) -> int:
    """Build the engine that the parent describes and serve it until told to close."""
    # Ctrl-C goes to the whole process group; ending in order is the parent's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    connection, host_fd = Connection(int(sys.argv[1])), int(sys.argv[2])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    outbox: SimpleQueue[object] = SimpleQueue()
    sender = threading.Thread(target=_send, args=(connection, outbox), daemon=True)
    sender.start()
    try:
        _serve(connection, outbox, host_fd, build)
    except Exception as error:
        log.exception("engine core failed")
        outbox.put(CoreFailed(f"the engine failed: {type(error).__name__}: {error}"))
        return 1
    finally:
        outbox.put(None)
        sender.join(timeout=5.0)
    return 0


def _serve(
    connection: Connection, outbox: "SimpleQueue[object]", host_fd: int, build: BuildEngine
) -> None:
    set_up = connection.recv()
    mover: BlockMover = ForwardingMover(outbox.put) if set_up.has_store else NoMover()
    engine, info = build(
        set_up.config,
        on_phase=lambda name, seconds: outbox.put(CorePhase(name, seconds)),
        outside=Outside(
            make_buffer=lambda num_slots, slot_bytes: HostBuffer.attach(
                host_fd, num_slots=num_slots, slot_bytes=slot_bytes
            ),
            make_mover=lambda _layout, _buffer: mover,
            fetch_timeout_s=set_up.fetch_timeout_s,
        ),
    )
    loop = EngineLoop(engine, outbox.put)
    threading.Thread(target=_receive, args=(connection, engine.inbox, loop), daemon=True).start()
    outbox.put(CoreReady(info))
    loop.run()
    engine.close()


def _receive(connection: Connection, inbox: Inbox, loop: EngineLoop) -> None:
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            # The parent died: nobody is left to serve, and a step under way must not outlive it.
            os._exit(0)
        if isinstance(message, Close):
            loop.stop()
            return
        inbox.put(message)


def _send(connection: Connection, outbox: "SimpleQueue[object]") -> None:
    """A thread of its own, so that a parent which is slow to read never stops a step."""
    while (message := outbox.get()) is not None:
        try:
            connection.send(message)
        except OSError:
            os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
