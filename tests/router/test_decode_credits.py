"""Decode capacity is promised once, to one request, and given back."""

from hypothesis import given
from hypothesis import strategies as st

from router.decode_credits import DecodeCredits, DecodeRoom


def test_a_promise_is_not_made_twice_between_two_statuses():
    credits = DecodeCredits(max_in_flight=10)
    room = DecodeRoom("d", num_free_blocks=10, num_free_places=10)
    assert credits.reserve("r1", 6, [room]) is not None
    assert credits.reserve("r2", 6, [room]) is None
    assert credits.promised_blocks("d") == 6


def test_the_replica_with_most_room_left_is_asked():
    credits = DecodeCredits(max_in_flight=10)
    rooms = [DecodeRoom("d1", 10, 4), DecodeRoom("d2", 14, 4)]
    taken = [credits.reserve(f"r{n}", 3, rooms) for n in range(4)]
    assert [credit.replica_id for credit in taken if credit] == ["d2", "d2", "d1", "d2"]


def test_places_and_hand_offs_in_flight_bound_promises_too():
    credits = DecodeCredits(max_in_flight=2)
    assert credits.reserve("r", 1, [DecodeRoom("d", 100, 0)]) is None
    roomy = [DecodeRoom("d", 100, 100)]
    taken = [credits.reserve(f"r{n}", 1, roomy) for n in range(3)]
    assert [credit is not None for credit in taken] == [True, True, False]


def test_a_credit_given_back_twice_counts_once():
    credits = DecodeCredits(max_in_flight=2)
    rooms = [DecodeRoom("d", 10, 10)]
    first, second = credits.reserve("r1", 4, rooms), credits.reserve("r2", 5, rooms)
    assert first is not None
    assert second is not None
    credits.release(first)
    credits.release(first)
    assert credits.promised_blocks("d") == 5
    credits.check()


def test_credits_go_with_their_replica():
    credits = DecodeCredits(max_in_flight=5)
    credit = credits.reserve("r", 4, [DecodeRoom("d", 10, 10)])
    assert credits.forget("d") == (credit,)
    assert credits.num_held == 0
    credits.check()


@given(
    st.lists(
        st.tuples(st.sampled_from(["reserve", "release", "forget"]), st.integers(0, 9)), max_size=80
    )
)
def test_promises_never_exceed_what_a_replica_said(steps: list[tuple[str, int]]):
    credits = DecodeCredits(max_in_flight=4)
    rooms = [DecodeRoom("d0", 12, 3), DecodeRoom("d1", 7, 9)]
    held = []
    for step, number in steps:
        if step == "reserve":
            credit = credits.reserve("r", number, rooms)
            held += [] if credit is None else [credit]
        elif step == "forget":
            credits.forget(f"d{number % 2}")
        elif held:
            credits.release(held.pop(number % len(held)))
        credits.check()
        for room in rooms:
            assert credits.promised_blocks(room.replica_id) <= room.num_free_blocks
