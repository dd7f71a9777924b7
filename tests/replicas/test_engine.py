"""The engine as its users see it: tokens in order, ends, refusals, cancels, sharing, preemption."""

import pytest

from replicas.engine import Engine
from replicas.engine_commands import Cancel, ClearCache, FinishChoice, Submit
from replicas.request import FinishReason, RefusalReason
from tests.replicas.engine_harness import (
    BLOCK_SIZE,
    ManualClock,
    alone,
    config,
    engine,
    entries,
    prompt,
    request,
    run,
    submit,
    tokens,
)

BOTH_MODES = pytest.mark.parametrize("async_scheduling", [False, True])


def ends(outputs):
    return {
        (entry.request_id, entry.choice): entry.finish_reason
        for entry in entries(outputs)
        if entry.finish_reason is not None
    }


@BOTH_MODES
def test_requests_together_get_the_tokens_that_each_gets_alone(async_scheduling):
    requests = [
        request(f"r{i}", prompt(5 + 7 * i, seed=i), max_tokens=3 + 2 * i, seed=i) for i in range(8)
    ]
    target = engine(async_scheduling=async_scheduling)
    submit(target, *requests)
    together = tokens(run(target))
    for one in requests:
        assert together[one.request_id, 0] == alone(one)[one.request_id, 0]


@BOTH_MODES
def test_every_choice_ends_once_and_frees_its_blocks(async_scheduling):
    target = engine(async_scheduling=async_scheduling)
    submit(target, *(request(f"r{i}", prompt(9, seed=i), num_choices=2) for i in range(5)))
    outputs = run(target)
    last = [entry for entry in entries(outputs) if entry.finish_reason is not None]
    assert len(last) == 10
    assert {entry.finish_reason for entry in last} == {FinishReason.LENGTH}
    assert target.stats.num_free_blocks == target.config.num_blocks
    assert target.stats.num_running == target.stats.num_waiting == 0


def test_a_late_short_request_ends_before_an_early_long_one():
    target = engine()
    submit(target, request("long", prompt(4), max_tokens=40))
    for _ in range(5):
        target.step()
    submit(target, request("short", prompt(4, seed=1), max_tokens=2))
    order = [key[0] for key in ends(run(target))]
    assert order == ["short", "long"]


def test_the_first_entry_says_that_the_request_was_admitted():
    target = engine()
    submit(target, request("r", prompt(4)))
    first = entries(run(target))[0]
    assert first.request_id == "r"
    assert first.token_ids == ()
    assert first.finish_reason is None


@BOTH_MODES
def test_an_end_token_ends_the_choice_and_is_not_streamed(async_scheduling):
    one = request("r", prompt(6), max_tokens=30)
    usual = alone(one)["r", 0]
    stop = usual[10]
    target = engine(async_scheduling=async_scheduling, end_token_ids=[stop])
    submit(target, one)
    outputs = run(target)
    assert tokens(outputs)["r", 0] == usual[: usual.index(stop)]
    last = entries(outputs)[-1]
    assert last.finish_reason is FinishReason.STOP
    assert last.stop_token_id == stop


def test_ignore_eos_goes_on_through_an_end_token():
    one = request("r", prompt(6), max_tokens=30, ignore_eos=True)
    usual = alone(one)["r", 0]
    target = engine(end_token_ids=[usual[10]])
    submit(target, one)
    assert tokens(run(target))["r", 0] == usual


def test_a_stop_token_of_the_request_ends_it_even_when_eos_is_ignored():
    usual = alone(request("r", prompt(6), max_tokens=30))["r", 0]
    one = request("r", prompt(6), max_tokens=30, ignore_eos=True, stop_token_ids=(usual[10],))
    target = engine()
    submit(target, one)
    assert tokens(run(target))["r", 0] == usual[: usual.index(usual[10])]


def test_output_stops_where_the_context_ends():
    target = engine(max_model_len=16)
    submit(target, request("r", prompt(10), max_tokens=100))
    outputs = run(target)
    assert len(tokens(outputs)["r", 0]) == 6
    assert ends(outputs)["r", 0] is FinishReason.LENGTH


@BOTH_MODES
def test_a_cancelled_request_frees_its_blocks_within_one_step(async_scheduling):
    target = engine(async_scheduling=async_scheduling)
    submit(target, request("gone", prompt(20), max_tokens=50), request("stays", prompt(20, seed=1)))
    for _ in range(6):
        target.step()
    target.inbox.put(Cancel("gone", 0))
    output = target.step()
    assert output is not None
    assert [entry.finish_reason for entry in output.entries if entry.request_id == "gone"][
        -1
    ] is FinishReason.CANCELLED
    target.check()
    rest = run(target)
    assert all(entry.request_id == "stays" for entry in entries(rest))
    assert target.stats.cancelled_total == 1


def test_cancelling_what_is_unknown_or_of_another_attempt_changes_nothing():
    target = engine()
    submit(target, request("r", prompt(6), attempt=2))
    target.inbox.put(Cancel("unknown", 0))
    target.inbox.put(Cancel("r", 1))
    assert ends(run(target))["r", 0] is FinishReason.LENGTH


def test_one_choice_can_be_finished_while_the_others_go_on():
    target = engine()
    submit(target, request("r", prompt(6), max_tokens=20, num_choices=3))
    for _ in range(4):
        target.step()
    target.inbox.put(FinishChoice("r", 0, 1))
    outputs = run(target)
    assert ends(outputs) == {
        ("r", 0): FinishReason.LENGTH,
        ("r", 1): FinishReason.STOP_STRING,
        ("r", 2): FinishReason.LENGTH,
    }


def test_a_newer_attempt_replaces_the_older_and_an_older_one_is_dropped():
    target = engine()
    submit(target, request("r", prompt(6), max_tokens=30))
    target.step()
    target.step()
    submit(target, request("r", prompt(6), max_tokens=30, attempt=1))
    submit(target, request("r", prompt(6), max_tokens=30, attempt=0))
    last = [entry for entry in entries(run(target)) if entry.finish_reason is not None]
    assert [(entry.attempt, entry.finish_reason) for entry in last] == [
        (0, FinishReason.CANCELLED),
        (1, FinishReason.LENGTH),
    ]


@BOTH_MODES
def test_a_resubmitted_request_goes_on_with_the_tokens_it_would_have_had(async_scheduling):
    usual = alone(request("r", prompt(11), max_tokens=20, seed=5))["r", 0]
    target = engine(async_scheduling=async_scheduling)
    submit(target, request("r", prompt(11), max_tokens=20, seed=5, attempt=1, emitted=usual[:7]))
    rest = [entry for entry in entries(run(target)) if entry.token_ids]
    assert rest[0].index == 7
    assert [token for entry in rest for token in entry.token_ids] == usual[7:]


@pytest.mark.parametrize(
    ("overrides", "length", "reason"),
    [
        ({"max_model_len": 32}, 32, RefusalReason.PROMPT_TOO_LONG),
        ({"num_blocks": 4}, 20, RefusalReason.NEVER_FITS),
    ],
)
def test_a_request_that_can_never_be_served_is_refused_at_once(overrides, length, reason):
    target = engine(**overrides)
    submit(target, request("r", prompt(length)))
    only = entries(run(target))
    assert [entry.finish_reason for entry in only] == [FinishReason.REFUSED]
    assert only[0].refusal.reason is reason
    assert only[0].refusal.retry_after_s is None


def test_a_full_waiting_line_refuses_with_a_time_to_come_back():
    target = engine(max_num_queued_reqs=2)
    submit(target, *(request(f"r{i}", prompt(4, seed=i)) for i in range(4)))
    outputs = run(target)
    refused = [entry for entry in entries(outputs) if entry.refusal is not None]
    assert [entry.request_id for entry in refused] == ["r2", "r3"]
    assert refused[0].refusal.reason is RefusalReason.QUEUE_FULL
    assert refused[0].refusal.retry_after_s >= 1.0


def test_a_request_that_waited_longer_than_it_allows_is_refused():
    clock = ManualClock()
    target = engine(clock=clock, max_num_seqs=1)
    submit(target, request("runs", prompt(4), max_tokens=30))
    submit(target, request("waits", prompt(4, seed=1), queue_timeout_s=2.0))
    target.step()
    clock.advance(3.0)
    outputs = run(target)
    refused = [entry for entry in entries(outputs) if entry.refusal is not None]
    assert [entry.request_id for entry in refused] == ["waits"]
    assert refused[0].refusal.reason is RefusalReason.EXPIRED


def test_lower_priority_numbers_run_first():
    target = engine(max_num_seqs=1, scheduling_policy="priority")
    submit(
        target,
        request("first", prompt(4), max_tokens=2),
        request("late", prompt(4, seed=1), max_tokens=2, priority=5),
        request("early", prompt(4, seed=2), max_tokens=2, priority=1),
    )
    assert [key[0] for key in ends(run(target))] == ["first", "early", "late"]


def test_choices_of_one_request_share_the_full_blocks_of_its_prompt():
    target = engine(num_blocks=32)
    submit(target, request("r", prompt(21), max_tokens=4, num_choices=4))
    peak = 0
    while target.has_work or target.stats.step == 0:
        target.step()
        target.check()
        peak = max(peak, target.config.num_blocks - target.stats.num_free_blocks)
    assert peak <= 5 + 4 * 2
    assert target.stats.computed_prompt_tokens_total == 21 + 3


def test_choices_differ_and_do_not_depend_on_each_other():
    several = alone(request("r", prompt(9), num_choices=3, seed=1))
    assert len({tuple(ids) for ids in several.values()}) == 3
    assert alone(request("r", prompt(9), num_choices=1, seed=1))["r", 0] == several["r", 0]


@BOTH_MODES
@pytest.mark.parametrize("budget", [8, 32])
def test_a_prefix_that_arrives_many_times_at_once_is_computed_once(async_scheduling, budget):
    shared = prompt(40)
    target = engine(
        async_scheduling=async_scheduling, num_blocks=200, max_num_batched_tokens=budget
    )
    submit(target, *(request(f"r{i}", [*shared, i, i, i, i]) for i in range(8)))
    run(target)
    assert target.stats.computed_prompt_tokens_total == 40 + 8 * 4
    assert target.stats.hit_tokens_total == 7 * 40


def test_a_second_request_finds_the_blocks_of_the_first():
    target = engine()
    submit(target, request("a", prompt(16), max_tokens=1))
    run(target)
    submit(target, request("b", prompt(16), max_tokens=1))
    entry = entries(run(target))[-1]
    assert entry.num_cached_tokens == 12, "all full blocks but the one of the last token"


def test_a_conversation_finds_the_reply_too():
    target = engine()
    submit(target, request("turn1", prompt(8), max_tokens=9))
    reply = tokens(run(target))["turn1", 0]
    submit(target, request("turn2", [*prompt(8), *reply, 1, 2, 3], max_tokens=1))
    assert entries(run(target))[-1].num_cached_tokens == 16


def test_two_tenants_share_nothing():
    target = engine()
    submit(target, request("a", prompt(16), tenant=b"a"))
    run(target)
    submit(target, request("b", prompt(16), tenant=b"b"))
    run(target)
    assert target.stats.hit_tokens_total == 0


def test_without_prefix_caching_only_choices_of_one_request_share():
    target = engine(enable_prefix_caching=False)
    submit(target, request("a", prompt(16), num_choices=2))
    run(target)
    assert target.stats.hit_tokens_total == 15
    submit(target, request("b", prompt(16)))
    run(target)
    assert target.stats.hit_tokens_total == 15


def test_a_cleared_cache_is_computed_anew():
    target = engine()
    submit(target, request("a", prompt(16)))
    run(target)
    target.inbox.put(ClearCache())
    submit(target, request("b", prompt(16)))
    run(target)
    assert target.stats.hit_tokens_total == 0


def test_whoever_waits_for_a_pending_block_goes_on_when_its_maker_is_gone():
    target = engine(max_num_batched_tokens=8, max_num_seqs=4)
    submit(target, request("maker", prompt(40)), request("waits", prompt(40)))
    target.step()
    assert target.stats.num_running == 1
    target.inbox.put(Cancel("maker", 0))
    assert ends(run(target))["waits", 0] is FinishReason.LENGTH


def test_the_wait_for_a_pending_block_is_bounded():
    clock = ManualClock()
    target = engine(
        clock=clock, max_num_batched_tokens=8, max_num_seqs=4, pending_block_timeout_s=1.0
    )
    submit(target, request("maker", prompt(60)), request("waits", prompt(60)))
    target.step()
    target.step()
    assert target.stats.num_waiting == 1
    clock.advance(1.5)
    # The maker fills the whole budget of every step; the other runs as soon as there is room.
    while target.stats.num_waiting:
        target.step()
        target.check()
    assert ends(run(target)).keys() >= {("waits", 0)}


@BOTH_MODES
def test_a_preempted_request_goes_on_with_the_tokens_it_would_have_had(async_scheduling):
    requests = [request(f"r{i}", prompt(10, seed=i), max_tokens=40, seed=i) for i in range(6)]
    target = engine(async_scheduling=async_scheduling, num_blocks=32, watermark=0.0)
    submit(target, *requests)
    together = tokens(run(target))
    assert target.stats.preemptions_total > 0
    assert target.stats.discarded_tokens_total > 0
    for one in requests:
        assert together[one.request_id, 0] == alone(one)[one.request_id, 0]


def test_a_long_prompt_does_not_stop_the_others_from_decoding():
    target = engine(num_blocks=200, max_num_batched_tokens=16, long_prefill_token_threshold=8)
    submit(target, request("steady", prompt(4), max_tokens=30))
    target.step()
    submit(target, request("long", prompt(100, seed=1)))
    for _ in range(10):
        output = target.step()
        assert any(e.request_id == "steady" and e.token_ids for e in output.entries)
        assert output.stats.num_prefill_tokens <= 8


def test_no_step_exceeds_its_token_budget():
    target = engine(num_blocks=200, max_num_batched_tokens=16)
    submit(target, *(request(f"r{i}", prompt(30, seed=i)) for i in range(8)))
    for output in run(target):
        assert output.stats.num_prefill_tokens + output.stats.num_decode_tokens <= 16


def test_a_request_that_needs_its_last_token_is_never_planned_without_it():
    one = request("r", prompt(6), max_tokens=12, needs_last_token=True)
    target = engine(async_scheduling=True)
    submit(target, one, request("other", prompt(6, seed=1), max_tokens=12))
    assert tokens(run(target))["r", 0] == alone(one)["r", 0]


def test_cache_events_come_no_sooner_than_the_step_that_computes_their_blocks():
    target = engine(async_scheduling=True, max_num_batched_tokens=8)
    submit(target, request("r", prompt(24), max_tokens=1))
    num_computed = 0
    num_stored = 0
    for output in run(target):
        num_computed += output.stats.num_prefill_tokens
        num_stored += sum(event.kind == "stored" for event in output.kv_events)
        assert num_stored * BLOCK_SIZE <= num_computed
    assert num_stored == 6


@BOTH_MODES
def test_a_runner_that_fails_ends_the_step_with_its_error(async_scheduling):
    class Broken:
        def run(self, batch, nearly_done):
            raise RuntimeError("no arithmetic today")

        def close(self):
            pass

    target = Engine(config(async_scheduling=async_scheduling), Broken(), clock=ManualClock())
    target.inbox.put(Submit(request("r", prompt(4))))
    with pytest.raises(RuntimeError, match="no arithmetic"):
        run(target)
    target.close()
