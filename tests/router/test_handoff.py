"""A hand-off from reserving to decoding, and every way in which it goes elsewhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.handoff import (
    Adopt,
    Command,
    DecodeLocally,
    DropTable,
    FailHandoff,
    Handoff,
    HandoffLimits,
    HandoffState,
    Prefill,
    Reserve,
    Withdraw,
)

LIMITS = HandoffLimits(
    reserve_timeout_s=1.0, prefill_timeout_s=10.0, adopt_timeout_s=2.0, max_reservations=3
)


def a_prefilling() -> Handoff:
    handoff = Handoff(LIMITS)
    assert handoff.begin(0.0) == (Reserve(1, frozenset()),)
    assert handoff.on_reserved(1, "d", 0.5) == (Prefill(1),)
    handoff.on_prefill_sent(1, "p")
    return handoff


def an_adopting() -> Handoff:
    handoff = a_prefilling()
    assert handoff.on_prefilled(1, 3.0) == (Adopt(1, "d"),)
    return handoff


def test_nothing_is_computed_before_decode_capacity_is_promised():
    handoff = Handoff(LIMITS)
    assert not any(isinstance(command, Prefill) for command in handoff.begin(0.0))
    assert handoff.on_prefilled(1, 0.0) == ()
    assert handoff.state is HandoffState.RESERVING


def test_an_adopted_table_frees_the_prefill_side_and_is_deleted():
    handoff = an_adopting()
    assert handoff.on_adopted(1) == (Withdraw(1, "p"), DropTable(1))
    assert handoff.state is HandoffState.DECODING
    assert handoff.deadline_at is None


def test_a_refused_reservation_asks_another_replica_with_a_new_generation():
    handoff = Handoff(LIMITS)
    handoff.begin(0.0)
    assert handoff.on_reserve_refused(1, "d", 0.1) == (Reserve(2, frozenset({"d"})),)
    assert handoff.on_reserved(1, "d", 0.2) == (Withdraw(1, "d"),)
    assert handoff.on_reserved(2, "e", 0.2) == (Prefill(2),)


def test_no_decode_capacity_anywhere_fails_before_prefill():
    handoff = Handoff(LIMITS)
    handoff.begin(0.0)
    assert handoff.on_reserve_refused(1, None, 0.1) == (FailHandoff("no_decode_capacity"),)
    assert handoff.state is HandoffState.FAILED


def test_reservations_that_are_never_answered_end():
    handoff = Handoff(LIMITS)
    handoff.begin(0.0)
    assert handoff.on_tick(0.9) == ()
    assert handoff.on_tick(1.0) == (Withdraw(1, None), Reserve(2, frozenset()))
    handoff.on_tick(2.0)
    assert handoff.on_tick(3.0) == (Withdraw(3, None), FailHandoff("no_decode_capacity"))


def test_a_prefill_replica_that_dies_leaves_the_prompt_to_the_decode_side():
    handoff = a_prefilling()
    assert handoff.on_replica_gone("p", 1.0) == (DecodeLocally(1, "d", "prefill_gone"),)
    assert handoff.state is HandoffState.LOCAL


def test_a_prefill_that_takes_too_long_is_withdrawn_and_computed_locally():
    handoff = a_prefilling()
    assert handoff.on_tick(10.5) == (
        Withdraw(1, "p"),
        DecodeLocally(1, "d", "prefill_timeout"),
    )
    assert handoff.on_prefilled(1, 11.0) == ()


def test_a_store_that_took_no_table_leaves_the_prompt_to_the_decode_side():
    handoff = a_prefilling()
    assert handoff.on_prefill_failed(1, "store_gone") == (
        Withdraw(1, "p"),
        DecodeLocally(1, "d", "store_gone"),
    )


@pytest.mark.parametrize("reason", ["missing", "expired", "corrupt", "other_model"])
def test_a_table_that_cannot_be_adopted_is_deleted_and_the_prompt_computed(reason: str):
    handoff = an_adopting()
    assert handoff.on_adopt_failed(1, reason) == (
        Withdraw(1, "p"),
        DropTable(1),
        DecodeLocally(1, "d", reason),
    )


def test_adopting_has_a_deadline():
    handoff = an_adopting()
    assert handoff.deadline_at == 5.0
    assert handoff.on_tick(5.0)[-1] == DecodeLocally(1, "d", "adopt_timeout")


def test_a_prefill_replica_may_die_after_it_published():
    handoff = an_adopting()
    assert handoff.on_replica_gone("p", 3.5) == ()
    assert handoff.on_adopted(1) == (DropTable(1),)


@pytest.mark.parametrize("handoff", [a_prefilling(), an_adopting()], ids=["prefill", "adopt"])
def test_a_decode_replica_that_dies_fences_its_generation_and_starts_anew(handoff: Handoff):
    commands = handoff.on_replica_gone("d", 3.5)
    assert Withdraw(1, "p") in commands
    assert commands[-1] == Reserve(2, frozenset({"d"}))
    assert handoff.on_adopted(1) == ()
    assert handoff.on_prefilled(1, 4.0) == (DropTable(1),)
    assert handoff.state is HandoffState.RESERVING


def test_a_client_that_left_leaves_nothing_behind():
    reserving = Handoff(LIMITS)
    reserving.begin(0.0)
    assert reserving.on_client_gone() == (Withdraw(1, None),)
    assert reserving.on_reserved(1, "d", 0.5) == (Withdraw(1, "d"),)
    assert a_prefilling().on_client_gone() == (Withdraw(1, "p"), Withdraw(1, "d"))
    assert an_adopting().on_client_gone() == (Withdraw(1, "p"), Withdraw(1, "d"), DropTable(1))
    decoding = an_adopting()
    decoding.on_adopted(1)
    assert decoding.on_client_gone() == (Withdraw(1, "d"),)
    assert decoding.on_client_gone() == ()


def test_replays_and_forged_generations_change_nothing():
    handoff = an_adopting()
    for generation in (0, 2, 99):
        assert handoff.on_adopted(generation) == ()
        assert handoff.on_adopt_failed(generation, "corrupt") == ()
    assert handoff.on_prefilled(1, 3.1) == ()
    assert handoff.on_reserved(1, "d", 3.1) == ()
    assert handoff.state is HandoffState.ADOPTING
    assert handoff.num_stale == 8


steps = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "reserved",
                "refused",
                "sent",
                "prefilled",
                "prefill_failed",
                "adopted",
                "adopt_failed",
                "gone",
                "client_gone",
                "tick",
            ]
        ),
        st.integers(0, 4),
        st.sampled_from(["d", "e", "p", "q"]),
        st.floats(0.0, 4.0),
    ),
    max_size=50,
)


def happen(handoff: Handoff, step: str, generation: int, replica: str, now: float):
    if step == "reserved":
        return handoff.on_reserved(generation, replica, now)
    if step == "refused":
        return handoff.on_reserve_refused(generation, replica, now)
    if step == "sent":
        handoff.on_prefill_sent(generation, replica)
        return ()
    if step == "prefilled":
        return handoff.on_prefilled(generation, now)
    if step == "prefill_failed":
        return handoff.on_prefill_failed(generation, "error")
    if step == "adopted":
        return handoff.on_adopted(generation)
    if step == "adopt_failed":
        return handoff.on_adopt_failed(generation, "error")
    if step == "gone":
        return handoff.on_replica_gone(replica, now)
    return handoff.on_client_gone() if step == "client_gone" else handoff.on_tick(now)


@given(steps)
def test_any_order_of_events_ends_with_at_most_one_decoder_and_no_table(
    order: list[tuple[str, int, str, float]],
):
    handoff = Handoff(LIMITS)
    now = 0.0
    commands: list[Command] = list(handoff.begin(now))
    for step, generation, replica, wait_s in order:
        now += wait_s
        if step == "prefilled" and handoff.state is HandoffState.PREFILLING:
            generation = handoff.generation
        commands += happen(handoff, step, generation, replica, now)
        handoff.check()
    for _ in range(10):
        if handoff.deadline_at is not None:
            now = handoff.deadline_at
            commands += handoff.on_tick(now)
    assert handoff.deadline_at is None, "a hand-off waits for ever"
    adopted = [command for command in commands if isinstance(command, Adopt)]
    dropped = {command.generation for command in commands if isinstance(command, DropTable)}
    assert {command.generation for command in adopted} <= dropped, "a table is left"
    reserved = [command.generation for command in commands if isinstance(command, Reserve)]
    assert reserved == sorted(set(reserved)), "a generation was used twice"
    assert sum(isinstance(command, DecodeLocally) for command in commands) <= 1
