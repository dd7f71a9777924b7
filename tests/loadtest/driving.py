"""Drives a share of load in the test's own loop, as a worker process would."""

import json
import time
import urllib.request
from typing import Any

from loadtest.call_record import CallRecord
from loadtest.config import LoadConfig, MeasureConfig, ServerConfig, TrafficConfig, WorkloadConfig
from loadtest.http_client import Target
from loadtest.openai_backend import DEFAULT_ENDPOINT, BackendKind
from loadtest.prompt_writer import COMMON_WORDS, TokenScale
from loadtest.server_facts import ServerFacts
from loadtest.worker import Share, run_share

FACTS = ServerFacts("mock-model", TokenScale(), COMMON_WORDS)


def config_for(
    base_url: str,
    traffic: TrafficConfig,
    workload: WorkloadConfig | None = None,
    *,
    backend: BackendKind = "openai",
    timeout_s: float = 30.0,
    **measure: Any,
) -> LoadConfig:
    return LoadConfig(
        server=ServerConfig(
            Target(base_url, DEFAULT_ENDPOINT[backend], timeout_s=timeout_s), backend
        ),
        workload=workload or WorkloadConfig(),
        traffic=traffic,
        measure=MeasureConfig(**measure),
    )


async def drive(config: LoadConfig, *, in_s: float = 0.05) -> list[CallRecord]:
    result = await run_share(config, FACTS, Share(), start=lambda: time.monotonic() + in_s)
    return sorted(result.records, key=lambda record: record.sent_at)


def truths_of(base_url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(base_url + "/mock/requests", timeout=5) as response:
        found: list[dict[str, Any]] = json.load(response)
    return found
