"""What waits for a gateway: merged while it does not read, sent again after a break."""

import pytest

from cluster.streams.stream_codec import (
    EngineReport,
    Heartbeat,
    KvEventBatch,
    StepMessage,
    decode_step,
)
from cluster.streams.token_outbox import TokenOutbox, join_entries
from cluster.wire import token_stream_pb2 as wire
from replicas.request import FinishReason, KvEvent, Timeline, TokenEntry, TokenLogprob


def an_entry(index: int, *token_ids: int, choice: int = 0, **fields: object) -> TokenEntry:
    return TokenEntry("r", 0, choice, index, token_ids=token_ids, **fields)


def a_report(number: int = 0) -> EngineReport:
    return EngineReport(outstanding_tokens=number)


def taken(outbox: TokenOutbox) -> StepMessage:
    message = outbox.take()
    assert message is not None
    return decode_step(wire.ReplicaMessage.FromString(message).step)


def test_an_empty_outbox_has_nothing_to_say():
    assert TokenOutbox().take() is None


def test_each_step_is_one_message_with_the_next_number():
    outbox = TokenOutbox()
    for number in range(3):
        outbox.add_step((an_entry(number, number),), a_report(), None)
        assert taken(outbox).sequence == number + 1
    assert outbox.num_coalesced_steps == 0


def test_steps_that_wait_become_one_message_with_all_their_tokens():
    outbox = TokenOutbox()
    for number in range(100):
        entries = (an_entry(number, 7, choice=0), an_entry(number, 8, choice=1))
        outbox.add_step(entries, a_report(number), None)
    step = taken(outbox)
    assert [(entry.choice, entry.token_ids) for entry in step.entries] == [
        (0, (7,) * 100),
        (1, (8,) * 100),
    ]
    assert step.report.outstanding_tokens == 99
    assert outbox.num_coalesced_steps == 99
    assert outbox.take() is None


def test_log_probabilities_stay_with_their_tokens_when_steps_are_merged():
    outbox = TokenOutbox()
    for number in range(3):
        one = TokenLogprob(-float(number), ((number, -float(number)),))
        outbox.add_step((an_entry(number, number, logprobs=(one,)),), a_report(), None)
    (entry,) = taken(outbox).entries
    assert entry.token_ids == (0, 1, 2)
    assert [each.top[0][0] for each in entry.logprobs] == [0, 1, 2]


def test_a_step_without_entries_still_brings_the_report():
    outbox = TokenOutbox()
    outbox.add_step((), a_report(5), None)
    assert taken(outbox).report.outstanding_tokens == 5


def test_more_than_fits_in_a_message_is_sent_in_several():
    outbox = TokenOutbox(max_message_tokens=10)
    entries = tuple(an_entry(0, *range(6), choice=choice) for choice in range(3))
    outbox.add_step((*entries, an_entry(0, *range(99), choice=9)), a_report(1), None)
    sent = [taken(outbox) for _ in range(4)]
    assert [[entry.choice for entry in step.entries] for step in sent] == [[0], [1], [2], [9]]
    assert [step.sequence for step in sent] == [1, 2, 3, 4]
    assert outbox.take() is None


def test_only_the_newest_heartbeat_is_kept_and_steps_go_first():
    outbox = TokenOutbox()
    for age_s in (1.0, 2.0):
        outbox.add_heartbeat(Heartbeat(age_s, True, True, a_report()))
    outbox.add_step((), a_report(), None)
    taken(outbox)
    message = outbox.take()
    assert message is not None
    assert wire.ReplicaMessage.FromString(message).heartbeat.last_step_age_s == 2.0
    assert outbox.take() is None


def test_what_was_missed_is_sent_again_in_order():
    outbox = TokenOutbox()
    for number in range(5):
        outbox.add_step((an_entry(number, number),), a_report(), None)
        taken(outbox)
    outbox.add_step((an_entry(5, 5),), a_report(), None)
    assert outbox.rewind(2)
    assert [taken(outbox).sequence for _ in range(4)] == [3, 4, 5, 6]
    assert outbox.take() is None


def test_nothing_missed_means_nothing_sent_again():
    outbox = TokenOutbox()
    outbox.add_step((), a_report(), None)
    taken(outbox)
    assert outbox.rewind(1)
    assert outbox.take() is None


def test_a_gap_is_admitted_when_the_missed_messages_are_gone():
    outbox = TokenOutbox(max_replay_messages=2)
    for number in range(5):
        outbox.add_step((an_entry(number, number),), a_report(), None)
        taken(outbox)
    assert not outbox.rewind(2)
    assert outbox.rewind(3)


def test_numbers_of_another_life_are_not_resumed():
    assert not TokenOutbox().rewind(1)
    assert TokenOutbox().rewind(0)


def test_memory_for_sending_again_is_bounded_in_bytes():
    outbox = TokenOutbox(max_replay_bytes=1000)
    for number in range(50):
        outbox.add_step((an_entry(number * 100, *range(1000, 1100)),), a_report(), None)
        taken(outbox)
    assert not outbox.rewind(40)
    assert outbox.rewind(49)


def test_cache_events_are_bounded_and_the_loss_shows_in_their_numbers():
    outbox = TokenOutbox(max_kv_events=4)
    for number in range(10):
        batch = KvEventBatch(1, number, (KvEvent("stored", (b"h",)),))
        outbox.add_step((), a_report(), batch)
    assert [batch.first_number for batch in taken(outbox).kv_events] == [6, 7, 8, 9]


def test_an_admission_leaves_no_trace_when_tokens_follow():
    assert join_entries(an_entry(0), an_entry(4, 1)) == an_entry(4, 1)


def test_joined_entries_keep_what_either_said():
    timeline = Timeline(arrived_at=1.0)
    joined = join_entries(
        an_entry(0, 1, num_cached_tokens=16),
        an_entry(1, 2, finish_reason=FinishReason.STOP, stop_token_id=0, timeline=timeline),
    )
    assert joined == an_entry(
        0,
        1,
        2,
        num_cached_tokens=16,
        finish_reason=FinishReason.STOP,
        stop_token_id=0,
        timeline=timeline,
    )


def test_tokens_that_do_not_follow_each_other_are_never_joined():
    with pytest.raises(AssertionError):
        join_entries(an_entry(0, 1, 2), an_entry(3, 4))
