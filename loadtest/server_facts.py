"""Learns from the server, before a run, its model's name and how its tokens relate to words."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import orjson

from loadtest.config import ServerConfig
from loadtest.http_client import StreamingClient
from loadtest.openai_backend import OpenAIBackend
from loadtest.program import Words
from loadtest.prompt_writer import COMMON_WORDS, PromptWriter, TokenScale, vocabulary_of

log = logging.getLogger(__name__)

PROBE_WORDS = (32, 160)
RETRY_S = 0.5


class ServerUnready(Exception):
    """The server did not answer in time, or has no model."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What is known of the server when a run begins."""

    model: str
    scale: TokenScale
    vocabulary: tuple[str, ...]

    def writer(self) -> PromptWriter:
        """A writer of prompts in this server's tokens."""
        return PromptWriter(self.vocabulary, self.scale)


async def learn_server(config: ServerConfig) -> ServerFacts:
    """Wait for the server, ask for its model, and calibrate prompt lengths.

    Raises ServerUnready; FileNotFoundError and ValueError for a bad tokenizer.
    """
    if config.tokenizer is None:
        vocabulary: Sequence[str] = COMMON_WORDS
        scale = TokenScale()
    else:
        vocabulary = vocabulary_of(config.tokenizer)
        scale = TokenScale(source="tokenizer")
    backend = OpenAIBackend(config.backend, config.model or "")
    async with StreamingClient(config.target, backend) as client:
        model = await _model_name(client, config)
        if config.calibrate:
            scale = await _calibrated(client, replace(backend, model=model), vocabulary, scale)
    return ServerFacts(model, scale, tuple(vocabulary))


async def _model_name(client: StreamingClient, config: ServerConfig) -> str:
    """The configured model, or the server's first, once it answers at all."""
    models = await _when_up(client, config.ready_timeout_s)
    if config.model is not None:
        return config.model
    try:
        return str(models["data"][0]["id"])
    except (KeyError, IndexError, TypeError) as error:
        raise ServerUnready("/v1/models names no model: give --model") from error


async def _when_up(client: StreamingClient, timeout_s: float) -> Any:
    """What /v1/models says when the server first answers; None if it has no such route."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return await client.get_json("/v1/models")
        except aiohttp.ClientResponseError as error:
            if error.status < 500:
                return None
            failure: Exception = error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            failure = error
        if time.monotonic() > deadline:
            raise ServerUnready(f"no answer from /v1/models: {failure}") from failure
        await asyncio.sleep(RETRY_S)


async def _calibrated(
    client: StreamingClient,
    backend: OpenAIBackend,
    vocabulary: Sequence[str],
    scale: TokenScale,
) -> TokenScale:
    """Send two prompts of known words and fit a line through the server's own counts."""
    writer = PromptWriter(vocabulary, TokenScale())
    counts = []
    for num_words in PROBE_WORDS:
        message = {"role": "user", "content": writer.write((Words(num_words, num_words),))}
        body = orjson.loads(backend.body([message], output_tokens=1, num_choices=1))
        body |= {"stream": False}
        del body["stream_options"]
        try:
            answer = await client.post_json(orjson.dumps(body))
            counts.append(int(answer["usage"]["prompt_tokens"]))
        except (aiohttp.ClientError, OSError, TimeoutError, KeyError, TypeError) as error:
            log.warning("calibration failed reason=%r lengths=%s", error, scale.source)
            return scale
    return _fit(counts, scale)


def _fit(counts: Sequence[int], scale: TokenScale) -> TokenScale:
    per_word = (counts[1] - counts[0]) / (PROBE_WORDS[1] - PROBE_WORDS[0])
    if per_word <= 0:
        log.warning("calibration failed counts=%s lengths=%s", counts, scale.source)
        return scale
    if scale.source == "tokenizer":
        # The tokenizer is exact about words; only the template's own tokens were unknown.
        return replace(scale, overhead_tokens=max(0, counts[0] - PROBE_WORDS[0]))
    overhead = round(counts[0] - PROBE_WORDS[0] * per_word)
    return TokenScale(per_word, max(0, overhead), "usage")
