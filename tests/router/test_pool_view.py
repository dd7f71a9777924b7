"""Pools as sums of their replicas."""

from dataclasses import replace

import pytest

from router.decode_credits import DecodeRoom
from router.pace import Pace
from router.pool_view import busy_tokens_per_s, decode_rooms, pool_load
from router.replica_status import GatewayAdmission, ReplicaState, ReplicaStatus

PACE = Pace(decode_base_s=0.02, decode_row_s=0.001, prefill_token_s=0.001)
DECODE = ReplicaStatus(
    "d0",
    role="decode",
    state=ReplicaState.ACTIVE,
    outstanding_tokens=1000,
    num_running=5,
    num_waiting=1,
    max_num_seqs=20,
    num_blocks=100,
    num_free_blocks=40,
)
PREFILL = replace(DECODE, replica_id="p0", role="prefill", num_waiting_tokens=1000)


def test_room_leaves_the_watermark_and_counts_those_that_wait():
    assert decode_rooms([DECODE, PREFILL], watermark=0.1) == [DecodeRoom("d0", 30, 14)]


def test_what_other_gateways_have_promised_is_not_promised_again():
    admissions = (GatewayAdmission("g", 0, 2, 7), GatewayAdmission("h", 0, 3, 9))
    status = replace(DECODE, admissions=admissions)
    assert decode_rooms([status], watermark=0.1, gateway_id="g") == [DecodeRoom("d0", 21, 11)]
    full = replace(DECODE, admissions=(GatewayAdmission("h", 0, 99, 999),))
    assert decode_rooms([full], watermark=0.1, gateway_id="g") == [DecodeRoom("d0", 0, 0)]


@pytest.mark.parametrize("state", [ReplicaState.SUSPECT, ReplicaState.DRAINING])
def test_only_active_replicas_are_promised_anything(state: ReplicaState):
    assert decode_rooms([replace(DECODE, state=state)], watermark=0.0) == []


def test_a_pool_is_the_sum_of_its_replicas_without_those_that_leave():
    statuses = [
        DECODE,
        replace(DECODE, replica_id="d1", num_free_blocks=0, outstanding_tokens=500),
        replace(DECODE, replica_id="d2", state=ReplicaState.STARTING),
        replace(DECODE, replica_id="d3", state=ReplicaState.DRAINING),
        PREFILL,
    ]
    load = pool_load(statuses, {"d0": PACE}, role="decode", attainment=0.9, num_held=2)
    assert (load.num_ready, load.num_starting, load.backlog_tokens) == (2, 1, 1500)
    assert load.kv_ratio == pytest.approx(0.8)
    assert load.tokens_per_s == pytest.approx(500.0)
    assert (load.attainment, load.num_held) == (0.9, 2)


def test_work_is_done_at_the_pace_of_its_kind():
    assert busy_tokens_per_s(PREFILL, PACE) == pytest.approx(1000.0)
    assert busy_tokens_per_s(DECODE, PACE) == pytest.approx(20 / 0.04)
    half = replace(DECODE, num_waiting_tokens=500)
    assert busy_tokens_per_s(half, PACE) == pytest.approx(1000 / (0.5 + 1.0))


def test_an_idle_pool_has_the_pace_of_its_role_and_an_unmeasured_one_has_none():
    idle = replace(DECODE, outstanding_tokens=0)
    assert busy_tokens_per_s(idle, PACE) == pytest.approx(500.0)
    assert busy_tokens_per_s(replace(idle, role="prefill"), PACE) == pytest.approx(1000.0)
    assert busy_tokens_per_s(DECODE, Pace()) == 0.0
    assert pool_load([DECODE], {}, role="decode").tokens_per_s == 0.0


def test_an_empty_pool_is_all_zeros():
    load = pool_load([], {}, role="mixed")
    assert (load.num_ready, load.kv_ratio, load.backlog_tokens) == (0, 0.0, 0)
