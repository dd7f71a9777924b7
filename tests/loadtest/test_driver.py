"""The driver sends on time whatever the server does, and records how every call ended."""

import asyncio
import time

import pytest

from loadtest.call_record import CallRecord
from loadtest.config import LoadConfig, TrafficConfig, WorkloadConfig
from loadtest.distribution import fixed
from loadtest.driver import Driver
from loadtest.program_run import RunContext
from loadtest.worker import Share, run_share
from tests.loadtest.conftest import StartMock
from tests.loadtest.driving import FACTS, config_for, drive, truths_of

# Real sockets and real time: a run lasts as long as its traffic.
pytestmark = pytest.mark.slow

SHORT = WorkloadConfig(input_tokens=fixed(20), output_tokens=fixed(5))


def outcomes(records: list[CallRecord]) -> list[str]:
    return [record.outcome for record in records]


async def test_an_open_loop_sends_on_time_through_a_stall(start_mock: StartMock) -> None:
    url = start_mock(ttft_s=0.02, itl_s=0.002, stall_at_s=0.5, stall_s=1.5)
    traffic = TrafficConfig(rate_rps=40, burstiness=float("inf"), num_programs=100)
    records = await drive(config_for(url, traffic, SHORT))
    assert outcomes(records) == ["finished"] * 100
    # All were sent within their 2.5 s and on their own marks, stall or not: whoever waited for the
    # server would have sent half of them half a second late and more.
    span_s = records[-1].sent_at - records[0].sent_at
    assert span_s == pytest.approx(99 / 40, abs=0.4)
    lags_s = sorted(record.lag_s for record in records)
    assert lags_s[80] < 0.2
    # Those sent into the stall waited for its end, and their TTFT says so.
    stalled = [record.ttft_s for record in records if record.ttft_s > 0.2]
    assert len(stalled) >= 40
    assert max(stalled) > 1.1


async def test_a_gate_at_the_client_is_recorded_as_its_own_wait(start_mock: StartMock) -> None:
    url = start_mock(ttft_s=0.4, itl_s=0.001)
    traffic = TrafficConfig(num_programs=6, max_concurrency=2)
    records = await drive(config_for(url, traffic, SHORT))
    queues_s = [record.queue_s for record in records]
    assert queues_s == pytest.approx([0, 0, 0.4, 0.4, 0.8, 0.8], abs=0.25)
    assert max(record.ttft_s for record in records) < 0.75
    assert max(record.lag_s for record in records) < 0.25


async def test_a_closed_loop_has_never_more_in_flight_than_users(start_mock: StartMock) -> None:
    url = start_mock(ttft_s=0.05, itl_s=0.005)
    traffic = TrafficConfig(
        arrivals="users", num_users=3, think_time_s=fixed(0.1), num_programs=None, duration_s=1.0
    )
    records = await drive(config_for(url, traffic, SHORT))
    events = sorted([(r.sent_at, 1) for r in records] + [(r.ended_at, -1) for r in records])
    running = peak = 0
    for _, change in events:
        running += change
        peak = max(peak, running)
    assert peak <= 3
    # Each round takes 0.07 s of answer and 0.1 s of thought.
    assert len(records) == pytest.approx(3 / 0.17, abs=6)


async def test_users_start_nothing_after_their_time_and_finish_what_they_started(
    start_mock: StartMock,
) -> None:
    url = start_mock(ttft_s=0.02, itl_s=0.01)
    workload = WorkloadConfig(input_tokens=fixed(5), output_tokens=fixed(20))
    traffic = TrafficConfig(arrivals="users", num_users=4, num_programs=None, duration_s=0.6)
    began = time.monotonic()
    records = await drive(config_for(url, traffic, workload))
    assert time.monotonic() - began < 10.0
    assert set(outcomes(records)) == {"finished"}
    assert records[-1].sent_at - records[0].sent_at < 2.0


async def test_calls_are_given_up_at_their_rate_and_after_their_delay(
    start_mock: StartMock,
) -> None:
    url = start_mock(ttft_s=0.05, itl_s=0.05)
    workload = WorkloadConfig(input_tokens=fixed(10), output_tokens=fixed(20))
    traffic = TrafficConfig(
        rate_rps=100, num_programs=100, cancel_ratio=0.3, cancel_after_s=fixed(0.2)
    )
    records = await drive(config_for(url, traffic, workload))
    gone = [record for record in records if record.outcome == "cancelled"]
    assert 18 <= len(gone) <= 42
    assert outcomes(records).count("finished") == 100 - len(gone)
    stayed_s = sorted(r.ended_at - r.sent_at for r in gone)[len(gone) // 2]
    assert 0.2 <= stayed_s < 0.9
    await asyncio.sleep(0.2)
    truths = await asyncio.to_thread(truths_of, url)
    heard = [truth for truth in truths if truth["outcome"] == "cancelled"]
    assert {truth["request_id"] for truth in heard} == {record.request_id for record in gone}


@pytest.mark.parametrize(
    ("profile", "error_class"),
    [
        ({"error_rate": 1.0, "error_status": 500}, "http_500"),
        ({"error_rate": 1.0, "error_status": 429}, "http_429"),
        ({"drop_rate": 1.0, "itl_s": 0.001}, "disconnected"),
        ({"ttft_s": 5.0}, "timeout"),
    ],
)
async def test_failures_are_told_apart(
    start_mock: StartMock, profile: dict[str, float], error_class: str
) -> None:
    url = start_mock(**profile)
    traffic = TrafficConfig(rate_rps=100, num_programs=3)
    records = await drive(config_for(url, traffic, SHORT, timeout_s=0.5))
    assert {(record.outcome, record.error_class) for record in records} == {("failed", error_class)}
    assert all(record.error for record in records)


async def test_a_server_that_is_not_there_is_a_failed_connection(free_port: object) -> None:
    port = free_port()  # type: ignore[operator]
    records = await drive(
        config_for(f"http://127.0.0.1:{port}", TrafficConfig(num_programs=2), SHORT)
    )
    assert {record.error_class for record in records} == {"connect"}


async def test_answers_still_open_after_the_grace_are_unfinished(start_mock: StartMock) -> None:
    url = start_mock(ttft_s=30.0)
    traffic = TrafficConfig(rate_rps=50, num_programs=None, duration_s=0.3, grace_s=0.3)
    began = time.monotonic()
    records = await drive(config_for(url, traffic, SHORT))
    assert time.monotonic() - began < 10.0
    assert set(outcomes(records)) == {"unfinished"}


async def test_a_stop_ends_the_run_with_what_there_is(start_mock: StartMock) -> None:
    url = start_mock(ttft_s=0.05, itl_s=0.001)
    config = config_for(url, TrafficConfig(rate_rps=20, num_programs=1000), SHORT)

    def stop_soon(driver: Driver, _: RunContext) -> None:
        asyncio.get_running_loop().call_later(0.6, driver.stop)

    result = await run_share(
        config, FACTS, Share(), start=lambda: time.monotonic(), on_driver=stop_soon
    )
    assert 3 <= len(result.records) <= 25
    assert "finished" in outcomes(result.records)


async def test_a_fault_of_the_driver_itself_is_raised(
    start_mock: StartMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = start_mock()

    async def broken(*_: object) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr("loadtest.http_client.StreamingClient.send", broken)
    with pytest.raises(LookupError, match="a bug"):
        await drive(config_for(url, TrafficConfig(num_programs=2), SHORT))


async def test_each_turn_of_a_session_sees_the_ones_before(start_mock: StartMock) -> None:
    url = start_mock(ttft_s=0.01, itl_s=0.001)
    workload = WorkloadConfig(
        dataset="sessions",
        turns=fixed(3),
        think_time_s=fixed(0.3),
        input_tokens=fixed(30),
        output_tokens=fixed(5),
    )
    config = config_for(url, TrafficConfig(num_programs=1), workload, backend="openai-chat")
    records = await drive(config)
    # 30 words each turn, and 5 words of answer from each turn before.
    assert [record.prompt_tokens for record in records] == [30, 65, 100]
    pauses = [b.sent_at - a.ended_at for a, b in zip(records, records[1:], strict=False)]
    assert len(pauses) == 2
    assert min(pauses) >= 0.29
    assert max(pauses) < 0.8


async def test_an_agents_step_waits_for_all_its_branches(start_mock: StartMock) -> None:
    url = start_mock(ttft_s=0.02, itl_s=0.002)
    workload = WorkloadConfig(
        dataset="agents",
        agent_steps=fixed(2),
        agent_fanout=fixed(3),
        tool_pause_s=fixed(0.1),
        input_tokens=fixed(10),
        output_tokens=fixed(4),
    )
    config = config_for(url, TrafficConfig(num_programs=1), workload, backend="openai-chat")
    records = await drive(config)
    first, second = records[:3], records[3:]
    assert len(second) == 3
    assert min(r.sent_at for r in second) - max(r.ended_at for r in first) >= 0.095
    # A second step's call sees three prompts of 10, three answers of 4, and its own 10.
    assert {record.prompt_tokens for record in second} == {52}


async def test_a_failed_step_ends_its_program(start_mock: StartMock) -> None:
    url = start_mock(error_rate=1.0)
    workload = WorkloadConfig(dataset="sessions", turns=fixed(3), think_time_s=fixed(0))
    assert len(await drive(config_for(url, TrafficConfig(num_programs=2), workload))) == 2


async def test_choices_are_counted_together_and_timed_apart(start_mock: StartMock) -> None:
    url = start_mock(ttft_s=0.02, itl_s=0.02)
    workload = WorkloadConfig(input_tokens=fixed(10), output_tokens=fixed(6), num_choices=3)
    (record,) = await drive(config_for(url, TrafficConfig(num_programs=1), workload))
    assert record.output_tokens == 18
    # Timed together it would be a third.
    assert 0.018 < record.tpot_s < 0.04
    assert len(record.gaps_s()) == 15


@pytest.mark.parametrize("reports_usage", [True, False])
async def test_tokens_are_counted_from_usage_or_else_from_chunks(
    start_mock: StartMock, reports_usage: bool
) -> None:
    url = start_mock(ttft_s=0.01, itl_s=0.001, tokens_per_chunk=2, reports_usage=reports_usage)
    (record,) = await drive(config_for(url, TrafficConfig(num_programs=1), SHORT))
    assert (record.has_usage, record.output_tokens) == (reports_usage, 5 if reports_usage else 3)


async def test_warm_ups_reach_the_server_and_not_the_records(start_mock: StartMock) -> None:
    url = start_mock(ttft_s=0.01, itl_s=0.001)
    config: LoadConfig = config_for(url, TrafficConfig(num_programs=3, num_warmups=4), SHORT)
    assert len(await drive(config)) == 3
    assert len(await asyncio.to_thread(truths_of, url)) == 7
