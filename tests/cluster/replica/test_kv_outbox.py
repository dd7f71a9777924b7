"""News of a prefix cache that waits for a gateway: in order, bounded, a snapshot before changes."""

from cluster.replica.kv_outbox import KvOutbox
from cluster.streams.stream_codec import KvEventBatch
from replicas.request import KvEvent
from router.prefixes.kv_events import KvSnapshot

PARTS = (
    KvSnapshot(1, 5, (b"a" * 32,), is_last=False),
    KvSnapshot(1, 5, (b"b" * 32,), is_first=False),
)


def a_batch(first_number: int, num_events: int = 1) -> KvEventBatch:
    return KvEventBatch(1, first_number, (KvEvent("stored", (b"x" * 32,)),) * num_events)


def test_changes_come_out_as_they_went_in():
    outbox = KvOutbox(max_events=9)
    outbox.add(a_batch(0))
    outbox.add(a_batch(1))
    assert outbox.take() == ((), (a_batch(0), a_batch(1)))
    assert not outbox


def test_changes_beyond_the_bound_are_dropped_oldest_first():
    outbox = KvOutbox(max_events=3)
    for number in range(0, 6, 2):
        outbox.add(a_batch(number, 2))
    assert outbox.take()[1] == (a_batch(4, 2),)


def test_a_snapshot_replaces_what_waited_and_goes_before_what_follows():
    outbox = KvOutbox(max_events=9)
    outbox.add(a_batch(4))
    outbox.add_snapshot(PARTS)
    outbox.add(a_batch(5))
    assert outbox.take() == ((PARTS[0],), ())
    assert outbox.take() == ((PARTS[1],), (a_batch(5),))
    assert not outbox
