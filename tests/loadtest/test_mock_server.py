"""The mock server does what its profile says, so that it can be the truth of other tests."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from loadtest.mock_server import MockProfile, MockServer
from loadtest.mock_server.profile import AnswerPlanner


class Mock:
    """A mock server in this loop, and a client for it."""

    def __init__(self) -> None:
        self.session = aiohttp.ClientSession()
        self.server: MockServer | None = None
        self.url = ""

    async def start(self, **profile: Any) -> None:
        self.server = MockServer(MockProfile(**profile))
        self.url = f"http://127.0.0.1:{await self.server.start()}"

    async def post(self, path: str, **body: Any) -> aiohttp.ClientResponse:
        return await self.session.post(self.url + path, json=body)

    async def events(self, path: str, **body: Any) -> list[Any]:
        async with await self.post(path, stream=True, **body) as response:
            text = await response.text()
        payloads = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
        assert payloads[-1] == "[DONE]"
        return [json.loads(payload) for payload in payloads[:-1]]


@pytest.fixture
async def mock() -> AsyncIterator[Mock]:
    mock = Mock()
    yield mock
    await mock.session.close()
    if mock.server is not None:
        await mock.server.close()


async def test_a_completion_streams_its_tokens_and_its_usage(mock: Mock) -> None:
    await mock.start(ttft_s=0.01, itl_s=0.001)
    events = await mock.events(
        "/v1/completions", prompt="a b c", max_tokens=5, stream_options={"include_usage": True}
    )
    assert [event["choices"][0]["text"] for event in events[:-1]] == [
        " the", " of", " and", " to", " in",
    ]  # fmt: skip
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}


async def test_a_chat_opens_with_its_role(mock: Mock) -> None:
    await mock.start(ttft_s=0.01, itl_s=0.001, template_tokens=4)
    messages = [{"role": "user", "content": "one two"}]
    events = await mock.events(
        "/v1/chat/completions",
        messages=messages,
        max_tokens=2,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["usage"]["completion_tokens"] for event in events[1:]] == [1, 2, 2]
    assert events[-1]["usage"]["prompt_tokens"] == 6


async def test_several_choices_stream_side_by_side(mock: Mock) -> None:
    await mock.start(ttft_s=0.01, itl_s=0.001)
    events = await mock.events("/v1/completions", prompt="a", max_tokens=3, n=2)
    assert [event["choices"][0]["index"] for event in events] == [0, 1] * 3


async def test_an_unstreamed_answer_comes_whole(mock: Mock) -> None:
    await mock.start(ttft_s=0.01, itl_s=0.001)
    async with await mock.post("/v1/completions", prompt="a b", max_tokens=4) as response:
        answer = await response.json()
    assert answer["choices"][0]["text"] == " the of and to"
    assert answer["usage"]["total_tokens"] == 6


async def test_chunks_of_several_tokens_carry_them_all(mock: Mock) -> None:
    await mock.start(ttft_s=0.01, itl_s=0.001, tokens_per_chunk=4)
    events = await mock.events("/v1/completions", prompt="a", max_tokens=10)
    assert [len(event["choices"][0]["text"].split()) for event in events] == [4, 4, 2]


async def test_only_so_many_run_and_the_rest_wait_or_are_refused(mock: Mock) -> None:
    await mock.start(ttft_s=0.1, itl_s=0.001, max_num_running=1, max_num_queued=1)
    responses = await asyncio.gather(
        *(mock.post("/v1/completions", prompt="a", max_tokens=1) for _ in range(3))
    )
    refused = [response for response in responses if response.status == 503]
    assert [response.status for response in responses].count(200) == 2
    assert [response.headers["retry-after"] for response in refused] == ["1"]
    assert mock.server is not None
    waited = sorted(
        t.chunk_sent_at[0] - t.received_at for t in mock.server.truths if t.chunk_sent_at
    )
    assert 0.1 <= waited[0] < waited[1]
    assert waited[1] >= 0.2


async def test_a_client_that_leaves_frees_its_place(mock: Mock) -> None:
    await mock.start(ttft_s=5.0, max_num_running=1)
    first = asyncio.create_task(mock.post("/v1/completions", prompt="a"))
    await asyncio.sleep(0.1)
    second = asyncio.create_task(mock.post("/v1/completions", prompt="a"))
    await asyncio.sleep(0.1)
    assert mock.server is not None
    assert [truth.outcome for truth in mock.server.truths] == ["running", "waiting"]
    first.cancel()
    await asyncio.sleep(0.1)
    assert [truth.outcome for truth in mock.server.truths] == ["cancelled", "running"]
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)


async def test_bad_requests_and_unknown_routes_are_told_so(mock: Mock) -> None:
    await mock.start()
    async with await mock.post("/v1/completions", words="a") as response:
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "BadRequestError"
    async with await mock.post("/v1/nothing") as response:
        assert response.status == 404


async def test_a_slow_start_passes(mock: Mock) -> None:
    await mock.start(ttft_s=0.02, slow_start_s=0.2, slow_start_factor=5.0)
    await mock.events("/v1/completions", prompt="a", max_tokens=1)
    await asyncio.sleep(0.25)
    await mock.events("/v1/completions", prompt="a", max_tokens=1)
    assert mock.server is not None
    planned = [truth.planned_ttft_s for truth in mock.server.truths]
    assert planned == pytest.approx([0.1, 0.02])


def test_faults_come_at_their_rates_and_equal_seeds_plan_equally() -> None:
    profile = MockProfile(error_rate=0.2, drop_rate=0.1, jitter_ratio=0.5, seed=3)
    plans, again = (
        [
            planner.plan(prompt_tokens=10, output_tokens=8, slowdown=1.0)
            for planner in [AnswerPlanner(profile)]
            for _ in range(3000)
        ]
        for _ in range(2)
    )
    assert plans == again
    outcomes = [plan.outcome for plan in plans]
    assert outcomes.count("error") / 3000 == pytest.approx(0.2, abs=0.03)
    assert outcomes.count("drop") / 3000 == pytest.approx(0.1, abs=0.02)
    first = [plan.chunk_offsets_s[0] for plan in plans if plan.chunk_offsets_s]
    assert min(first) >= 0.025
    assert max(first) <= 0.075


def test_a_rate_beyond_one_is_refused() -> None:
    with pytest.raises(ValueError, match="error_rate=2"):
        MockProfile(error_rate=2)
