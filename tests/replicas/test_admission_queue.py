"""The waiting line: bounds, order, deadlines."""

from replicas.admission_queue import AdmissionQueue
from replicas.policies import waiting_order
from replicas.request import Refusal, RefusalReason
from tests.replicas.engine_harness import config, prompt, request


def queue(policy="fcfs", **overrides):
    return AdmissionQueue(config(**overrides), waiting_order(policy))


def admit(line, name, *, now=0.0, length=4, rate=0.0, **options):
    return line.admit(request(name, prompt(length), **options), now=now, tokens_per_s=rate)


def names(states):
    return [state.origin.request_id for state in states]


def test_each_choice_waits_for_itself():
    line = queue()
    assert len(admit(line, "r", num_choices=3)) == 3
    assert len(line) == 3
    assert line.num_tokens == 12


def test_the_line_is_bounded_in_tokens_too():
    line = queue(max_num_queued_tokens=10)
    assert not isinstance(admit(line, "a", length=6), Refusal)
    refusal = admit(line, "b", length=6)
    assert refusal.reason is RefusalReason.QUEUE_FULL


def test_an_empty_line_takes_a_request_larger_than_its_bound():
    assert not isinstance(admit(queue(max_num_queued_tokens=3), "a", length=6), Refusal)


def test_the_time_to_come_back_is_the_backlog_at_the_measured_rate():
    line = queue(max_num_queued_reqs=1)
    admit(line, "a", length=100)
    assert admit(line, "b", rate=10.0).retry_after_s == 10.0
    assert admit(line, "b", rate=1e6).retry_after_s == 1.0


def test_first_come_is_first_served():
    line = queue()
    admit(line, "late", now=2.0)
    admit(line, "early", now=1.0)
    assert names(line.in_order(3.0)) == ["early", "late"]


def test_a_preempted_request_keeps_its_place_although_the_line_is_full():
    line = queue(max_num_queued_reqs=1)
    (early,) = admit(line, "early", now=1.0)
    line.remove(early)
    admit(line, "late", now=2.0)
    line.readmit(early)
    assert names(line.in_order(3.0)) == ["early", "late"]


def test_priority_goes_before_arrival():
    line = queue("priority")
    admit(line, "first", now=1.0, priority=1)
    admit(line, "urgent", now=2.0, priority=0)
    admit(line, "second", now=3.0, priority=1)
    assert names(line.in_order(4.0)) == ["urgent", "first", "second"]


def test_only_requests_that_never_ran_can_expire():
    line = queue()
    (ran,) = admit(line, "ran", queue_timeout_s=1.0)
    ran.mark(scheduled_at=0.5)
    admit(line, "patient")
    admit(line, "gone", queue_timeout_s=1.0)
    assert names(line.expired(2.0)) == ["gone"]
    assert line.expired(0.9) == []
