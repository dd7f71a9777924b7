"""Prefix-cache events for other routers, as a subscriber that knows vLLM's format reads them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import zmq

from cluster.kv_events.config import KvEventsConfig
from cluster.kv_events.opening import KvEventsTap, open_publisher
from cluster.kv_events.publisher import KvEventsPublisher
from cluster.kv_events.wire_format import encode_batch
from replicas.engine_stats import EngineStats
from replicas.request import KvEvent
from replicas.step_output import StepOutput

NAME, PARENT = bytes(range(32)), bytes(range(32, 64))
STORED = KvEvent("stored", (NAME,), PARENT, tuple(range(16)))
REMOVED = KvEvent("removed", (NAME,))
CONFIG = KvEventsConfig("tcp://127.0.0.1:0", "tcp://127.0.0.1:0", kv_events_hashes="bytes")
WAIT_MS = 5000


@contextmanager
def publishing() -> Iterator[tuple[KvEventsPublisher, zmq.Socket, zmq.Socket]]:
    """A publisher, a subscriber that hears it, and a reader that can ask for replays."""
    publisher = KvEventsPublisher(CONFIG, topic="kv@h@m", block_size=16, wall_clock=lambda: 7.5)
    context = zmq.Context()
    subscriber, dealer = context.socket(zmq.SUB), context.socket(zmq.DEALER)
    subscriber.connect(publisher.endpoint)
    subscriber.setsockopt_string(zmq.SUBSCRIBE, "kv@")
    dealer.connect(publisher.replay_endpoint)
    deadline = time.monotonic() + 5
    # Nothing says when a subscription has arrived.
    while not subscriber.poll(20):
        assert time.monotonic() < deadline
        publisher.publish((KvEvent("cleared"),))
    time.sleep(0.1)
    while subscriber.poll(0):
        subscriber.recv_multipart()
    try:
        yield publisher, subscriber, dealer
    finally:
        publisher.close()
        context.destroy(linger=0)


def decoded(payload: bytes):
    return msgspec.msgpack.decode(payload)


def test_a_batch_is_an_array_of_time_events_and_rank():
    batch = encode_batch((STORED, REMOVED), at=7.5, block_size=16, hashes="bytes")
    at, (stored, removed), rank = decoded(batch)
    assert (at, rank) == (7.5, 0)
    assert stored["type"] == "BlockStored"
    assert (stored["block_hashes"], stored["parent_block_hash"]) == ([NAME], PARENT)
    assert (stored["token_ids"], stored["block_size"]) == (list(range(16)), 16)
    assert removed == {"type": "BlockRemoved", "block_hashes": [NAME], "medium": "GPU"}


def test_names_are_their_low_64_bits_unless_they_are_asked_for_whole():
    batch = encode_batch((STORED, KvEvent("cleared")), at=0.0, block_size=16, hashes="int")
    _, (stored, cleared), _ = decoded(batch)
    assert stored["block_hashes"] == [int.from_bytes(NAME[-8:], "big")]
    assert cleared == {"type": "AllBlocksCleared"}


def test_a_subscriber_hears_batches_in_order_with_their_numbers():
    with publishing() as (publisher, subscriber, _):
        publisher.publish((STORED,))
        publisher.publish(())
        publisher.publish((REMOVED,))
        heard = []
        while len(heard) < 2:
            assert subscriber.poll(WAIT_MS)
            heard.append(subscriber.recv_multipart())
        assert [topic for topic, _, _ in heard] == [b"kv@h@m"] * 2
        numbers = [int.from_bytes(number, "big") for _, number, _ in heard]
        assert numbers[1] == numbers[0] + 1
        kinds = [decoded(payload)[1][0]["type"] for _, _, payload in heard]
        assert kinds == ["BlockStored", "BlockRemoved"]


def test_a_reader_that_missed_some_asks_for_them():
    with publishing() as (publisher, subscriber, dealer):
        publisher.publish((STORED,))
        assert subscriber.poll(WAIT_MS)
        _, number, payload = subscriber.recv_multipart()
        dealer.send_multipart((b"", number))
        assert dealer.poll(WAIT_MS)
        assert dealer.recv_multipart() == [b"", b"kv@h@m", number, payload]
        assert dealer.poll(WAIT_MS)
        assert int.from_bytes(dealer.recv_multipart()[2], "big", signed=True) == -1


def test_replicas_of_one_machine_take_ports_one_after_another():
    with publishing() as (publisher, _, _):
        second = KvEventsPublisher(
            KvEventsConfig(publisher.endpoint), topic="kv@h@m", block_size=16
        )
        try:
            assert second.endpoint != publisher.endpoint
        finally:
            second.close()


class Heard:
    """A publisher that only remembers."""

    def __init__(self):
        self.batches = []

    def publish(self, events):
        self.batches.append(events)

    def close(self):
        self.batches.append("closed")


def test_a_new_core_is_told_as_an_empty_cache_and_outputs_pass_on():
    heard, passed = Heard(), []
    tap = KvEventsTap(heard)
    output = StepOutput(stats=EngineStats(), entries=(), kv_events=(STORED,))
    tap.on(passed.append)(output)
    tap.on(passed.append)
    tap.close()
    cleared = (KvEvent("cleared"),)
    assert (heard.batches, passed) == ([cleared, (STORED,), cleared, "closed"], [output])


def test_nothing_is_published_unless_it_is_asked_for():
    assert open_publisher(KvEventsConfig(), host="h", model_name="m", block_size=16) is None
    with pytest.raises(ValueError, match="kv_events_endpoint='5557': expected tcp://HOST:PORT"):
        KvEventsConfig("5557")
    with pytest.raises(ValueError, match="expected kv_events_endpoint too"):
        KvEventsConfig(kv_events_replay_endpoint="tcp://*:1")
