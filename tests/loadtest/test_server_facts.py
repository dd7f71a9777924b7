"""A server tells its model and its tokens per word before a run."""

from dataclasses import replace

import pytest

from loadtest.config import TrafficConfig, WorkloadConfig
from loadtest.distribution import fixed
from loadtest.server_facts import ServerUnready, learn_server
from loadtest.worker import Share, run_share
from tests.loadtest.conftest import StartMock
from tests.loadtest.driving import config_for


async def test_the_scale_is_fitted_from_the_servers_own_counts(start_mock: StartMock) -> None:
    url = start_mock(tokens_per_word=1.5, template_tokens=11, model="some/model")
    config = config_for(url, TrafficConfig(), backend="openai-chat")
    facts = await learn_server(config.server)
    assert facts.model == "some/model"
    assert facts.scale.source == "usage"
    assert facts.scale.tokens_per_word == pytest.approx(1.5, abs=0.02)
    assert facts.scale.overhead_tokens == 11


async def test_calibrated_prompts_have_the_length_that_was_asked_for(
    start_mock: StartMock,
) -> None:
    url = start_mock(ttft_s=0.01, itl_s=0.001, tokens_per_word=1.5, template_tokens=11)
    workload = WorkloadConfig(input_tokens=fixed(300), output_tokens=fixed(2))
    config = config_for(url, TrafficConfig(num_programs=3), workload, backend="openai-chat")
    facts = await learn_server(config.server)
    result = await run_share(config, facts, Share(), start=lambda: 0.0)
    assert [r.prompt_tokens for r in result.records] == [pytest.approx(300, abs=2)] * 3


async def test_without_usage_lengths_are_an_estimate(start_mock: StartMock) -> None:
    url = start_mock(ttft_s=0.01, itl_s=0.001, error_rate=1.0)
    facts = await learn_server(config_for(url, TrafficConfig()).server)
    assert facts.scale.source == "estimate"


async def test_a_server_that_never_answers_is_named(free_port: object) -> None:
    port = free_port()  # type: ignore[operator]
    config = config_for(f"http://127.0.0.1:{port}", TrafficConfig())
    for model in (None, "named"):
        with pytest.raises(ServerUnready, match="/v1/models"):
            await learn_server(replace(config.server, ready_timeout_s=0.2, model=model))
