"""Publishes a replica's prefix-cache events on ZeroMQ, and says again what a reader missed.

A thread of its own has both sockets, so that neither steps nor tokens wait for a subscriber; one
that is too slow loses messages, sees a gap in the sequence and asks for a replay. Sequence numbers
start at 0 with the process, as vLLM's do.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

import zmq

from cluster.kv_events.config import KvEventsConfig
from cluster.kv_events.wire_format import encode_batch
from replicas.request import KvEvent

log = logging.getLogger(__name__)

# As vLLM keeps.
MAX_REPLAY_BATCHES = 10_000
MAX_PORTS = 64
_TICK_S = 0.05
_CLOSE_TIMEOUT_S = 2.0
_END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


class KvEventsPublisher:
    """One replica's publisher. topic: of every message. wall_clock: Unix seconds.

    Raises OSError if neither the port nor any of the next ones is free.
    """

    def __init__(
        self,
        config: KvEventsConfig,
        *,
        topic: str,
        block_size: int,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._topic = topic.encode()
        self._block_size = block_size
        self._wall_clock = wall_clock
        self._inbox: queue.SimpleQueue[tuple[KvEvent, ...] | None] = queue.SimpleQueue()
        self._sent: deque[tuple[bytes, bytes]] = deque(maxlen=MAX_REPLAY_BATCHES)
        self._next_number = 0
        self._context = zmq.Context()
        self._publishing = self._context.socket(zmq.PUB)
        self._replaying: zmq.Socket[bytes] | None = None
        self.endpoint = _bind(self._publishing, config.kv_events_endpoint)
        self.replay_endpoint = ""
        if config.kv_events_replay_endpoint:
            self._replaying = self._context.socket(zmq.ROUTER)
            self.replay_endpoint = _bind(self._replaying, config.kv_events_replay_endpoint)
        log.info(
            "kv events published endpoint=%s replay=%s topic=%s",
            self.endpoint,
            self.replay_endpoint or "none",
            topic,
        )
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self, events: tuple[KvEvent, ...]) -> None:
        """Changes in the order in which they happened; from any thread, never waits."""
        if events:
            self._inbox.put(events)

    def close(self) -> None:
        """Send what is waiting, then let go of the ports."""
        self._inbox.put(None)
        self._thread.join(_CLOSE_TIMEOUT_S)
        self._context.destroy(linger=0)

    def _run(self) -> None:
        while True:
            try:
                events = self._inbox.get(timeout=_TICK_S)
            except queue.Empty:
                self._answer_replays()
                continue
            if events is None:
                return
            self._send(events)
            self._answer_replays()

    def _send(self, events: tuple[KvEvent, ...]) -> None:
        payload = encode_batch(
            events,
            at=self._wall_clock(),
            block_size=self._block_size,
            hashes=self._config.kv_events_hashes,
        )
        number = self._next_number.to_bytes(8, "big")
        self._next_number += 1
        self._sent.append((number, payload))
        self._publishing.send_multipart((self._topic, number, payload))

    def _answer_replays(self) -> None:
        """[reader, empty, first number] asks; every batch from that on, then number -1, answers."""
        socket = self._replaying
        while socket is not None and socket.poll(0):
            frames = socket.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                log.warning("kv events: a replay was asked for wrongly num_frames=%d", len(frames))
                continue
            reader, first = frames[0], frames[2]
            for number, payload in self._sent:
                if number >= first:
                    socket.send_multipart((reader, b"", self._topic, number, payload))
            socket.send_multipart((reader, b"", self._topic, _END_OF_REPLAY, b""))


def _bind(socket: "zmq.Socket[bytes]", endpoint: str) -> str:
    """Listen there, or at the next port that is free; returns where."""
    host, _, first = endpoint.rpartition(":")
    for port in range(int(first), int(first) + MAX_PORTS):
        try:
            socket.bind(f"{host}:{port}" if port else f"{host}:*")
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise OSError(f"{host}:{port}: {error}") from error
        else:
            return socket.getsockopt_string(zmq.LAST_ENDPOINT)
    raise OSError(f"{endpoint}: this port and the next {MAX_PORTS - 1} are taken")
