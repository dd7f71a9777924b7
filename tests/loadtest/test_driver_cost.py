"""One core is enough for 500 streams and 15,000 tokens a second, whatever else runs here."""

import time

import pytest

from loadtest.config import TrafficConfig, WorkloadConfig
from loadtest.distribution import fixed
from loadtest.worker import Share, run_share
from tests.loadtest.conftest import StartMock
from tests.loadtest.driving import FACTS, config_for

pytestmark = pytest.mark.slow

TOKENS_PER_S = 15_000
NUM_STREAMS = 500
TOKENS_EACH = 60


async def test_a_token_costs_less_than_its_share_of_a_core(start_mock: StartMock) -> None:
    # Wall time depends on who else uses the machine; the driver's own CPU time does not.
    url = start_mock(ttft_s=0.5, itl_s=NUM_STREAMS / TOKENS_PER_S)
    workload = WorkloadConfig(input_tokens=fixed(64), output_tokens=fixed(TOKENS_EACH))
    config = config_for(url, TrafficConfig(num_programs=NUM_STREAMS), workload)
    began, cpu_began = time.monotonic(), time.process_time()
    result = await run_share(config, FACTS, Share(), start=time.monotonic)
    cpu_s, wall_s = time.process_time() - cpu_began, time.monotonic() - began
    assert [record.outcome for record in result.records].count("finished") == NUM_STREAMS
    num_tokens = sum(record.output_tokens for record in result.records)
    assert num_tokens == NUM_STREAMS * TOKENS_EACH
    assert cpu_s / num_tokens < 1 / TOKENS_PER_S, f"{cpu_s:.2f} s of CPU in {wall_s:.2f} s"
    peak = max(
        sum(a.sent_at <= b.sent_at < a.ended_at for a in result.records) for b in result.records
    )
    assert peak == NUM_STREAMS
