"""Between two replicas the fastest way is tried first, and one that failed last, for a while."""

from kvstore.block_transport import Delivery, Source
from replicas.transport_choice import FORGET_AFTER_S, TransportChoice, offering
from tests.replicas.engine_harness import ManualClock


class Way:
    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address


def order(choice: TransportChoice) -> list[str]:
    names = ["shm", "grpc", "store"]
    return sorted(names, key=lambda name: choice.rank(Source(bytes(32), f"at-{name}"), name))


def note(choice: TransportChoice, name: str, num_bytes: int, seconds: float, ended_by="complete"):
    delivery = Delivery(num_bytes // 100, num_bytes, ended_by)
    choice.note(Source(bytes(32), f"at-{name}"), name, delivery, seconds)


def test_ways_that_nothing_is_known_of_come_first_in_their_order():
    choice = TransportChoice(clock=ManualClock())
    assert order(choice) == ["shm", "grpc", "store"]
    note(choice, "shm", 1000, 0.001)
    assert order(choice) == ["grpc", "store", "shm"]


def test_then_the_fastest_comes_first():
    choice = TransportChoice(clock=ManualClock())
    note(choice, "shm", 1000, 1.0)
    note(choice, "grpc", 1000, 0.1)
    note(choice, "store", 1000, 0.5)
    assert order(choice) == ["grpc", "store", "shm"]


def test_a_way_that_failed_comes_last_for_a_while():
    clock = ManualClock()
    choice = TransportChoice(clock=clock)
    note(choice, "shm", 0, 0.1, "connection")
    assert order(choice) == ["grpc", "store", "shm"]
    clock.advance(FORGET_AFTER_S)
    assert order(choice) == ["shm", "grpc", "store"]


def test_a_missing_block_says_nothing_against_a_way():
    choice = TransportChoice(clock=ManualClock())
    note(choice, "shm", 0, 0.1, "absent")
    assert order(choice)[0] == "shm"


def test_measurements_do_not_last_for_ever():
    clock = ManualClock()
    choice = TransportChoice(clock=clock)
    for name, seconds in (("shm", 1.0), ("grpc", 0.1), ("store", 0.1)):
        note(choice, name, 1000, seconds)
    clock.advance(FORGET_AFTER_S)
    assert order(choice) == ["shm", "grpc", "store"]


def test_many_replicas_that_come_and_go_are_forgotten():
    choice = TransportChoice(clock=ManualClock())
    for number in range(3000):
        source = Source(bytes(32), f"replica-{number}")
        choice.note(source, "grpc", Delivery(1, 100, "complete"), 0.1)
        choice.note(source, "shm", Delivery(0, 0, "connection"), 0.1)
    assert choice.num_known <= 2 * 1024


def test_blocks_are_offered_by_the_store_only_where_there_is_no_direct_way():
    store, direct, closed = Way("store", "store"), Way("grpc", "host:1"), Way("shm", "")
    assert offering([closed, direct, store]) == [direct]
    assert offering([closed, store]) == [store]
