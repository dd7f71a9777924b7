"""Lets the threads that serve HTTP and gRPC give way to the engine on a machine with few cores."""

import logging
import os
import threading

log = logging.getLogger(__name__)

# A tenth of a normal thread's share when both want the core; a thread that mostly sleeps still
# runs as soon as it wakes up.
NICENESS = 10


def yield_to_engine() -> None:
    """Lower the priority of the calling thread alone.

    On Linux niceness belongs to a thread, so the engine core, which another thread starts, does
    not inherit it. Elsewhere, and where it is forbidden, the thread stays as it is.
    """
    try:
        thread = threading.get_native_id()
        lowered = max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
        os.setpriority(os.PRIO_PROCESS, thread, lowered)
    except (AttributeError, OSError) as error:
        log.info("thread priority unchanged reason=%s", error)
