"""The driver's percentiles are the server's own, within 2 ms."""

import asyncio
from typing import Any

import numpy as np
import pytest

from loadtest.config import TrafficConfig, WorkloadConfig
from loadtest.distribution import fixed
from loadtest.figures import latency_values
from tests.loadtest.conftest import StartMock
from tests.loadtest.driving import config_for, drive, truths_of

pytestmark = pytest.mark.slow

ATTEMPTS = 8
TOLERANCE_MS = 2.0


def true_latencies(truths: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    sent = [truth["chunk_sent_at"] for truth in truths]
    received = [truth["received_at"] for truth in truths]
    return {
        "ttft": np.array([s[0] - r for s, r in zip(sent, received, strict=True)]) * 1000,
        "tpot": np.array([(s[-1] - s[0]) / (len(s) - 1) for s in sent]) * 1000,
        "itl": np.array([gap for s in sent for gap in np.diff(s)]) * 1000,
        "e2el": np.array([s[-1] - r for s, r in zip(sent, received, strict=True)]) * 1000,
    }


async def measure_once(start_mock: StartMock) -> dict[str, float]:
    """The largest difference over p50, p90 and p99, per metric, in milliseconds."""
    url = start_mock(ttft_s=0.08, itl_s=0.012, jitter_ratio=0.5, seed=7)
    traffic = TrafficConfig(rate_rps=30, num_programs=120)
    workload = WorkloadConfig(input_tokens=fixed(50), output_tokens=fixed(20))
    records = await drive(config_for(url, traffic, workload))
    truths = await asyncio.to_thread(truths_of, url)
    assert len(records) == len(truths) == 120
    seen, true = latency_values(records), true_latencies(truths)
    return {
        name: max(
            abs(float(np.percentile(seen[name], p) - np.percentile(true[name], p)))
            for p in (50, 90, 99)
        )
        for name in true
    }


async def test_percentiles_equal_the_truth_within_two_milliseconds(start_mock: StartMock) -> None:
    # On a machine that others use too, a stall between the two processes is not the driver's
    # error: the best of a few attempts must be within the bound, in every metric.
    worst: list[dict[str, float]] = []
    for _ in range(ATTEMPTS):
        differences = await measure_once(start_mock)
        worst.append({name: round(value, 2) for name, value in differences.items()})
        if max(differences.values()) < TOLERANCE_MS:
            return
    pytest.fail(f"differences in ms: {worst}")


async def test_the_medians_are_those_of_the_profile(start_mock: StartMock) -> None:
    url = start_mock(ttft_s=0.1, itl_s=0.02)
    traffic = TrafficConfig(rate_rps=20, num_programs=40)
    workload = WorkloadConfig(input_tokens=fixed(10), output_tokens=fixed(10))
    values = latency_values(await drive(config_for(url, traffic, workload)))
    # A busy machine adds to each of them, and never takes away.
    assert 99 <= np.median(values["ttft"]) < 150
    assert 19 <= np.median(values["tpot"]) < 30
    assert 275 <= np.median(values["e2el"]) < 420
