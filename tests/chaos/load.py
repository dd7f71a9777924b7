"""Clients that know every token they must get, and judge what they got."""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from enum import StrEnum

import httpx

from tests.chaos.simulated_core import expected_tokens
from tests.cluster.tiny_model import NAME, text_of, token_id_of

# All prompts of a round begin with one of these, so that blocks are shared and fetched.
_STEMS = tuple("abcdefgh"[n] * 48 for n in range(4))
_TIMEOUT_S = 120.0


class Verdict(StrEnum):
    """What a client got.

    WHOLE: every token, once, in order, and its end. CUT: a clean ending: what came was right, the
    connection broke or said so, and nothing claimed to be the end. WRONG: anything else.
    """

    WHOLE = "whole"
    CUT = "cut"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One client's experience. pause_s: longest time without news, from its call on."""

    verdict: Verdict
    pause_s: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request; its tokens follow from it alone."""

    prompt: str
    seed: int
    max_tokens: int
    stream: bool = True

    @property
    def text(self) -> str:
        """The only right answer."""
        prompt = [token_id_of(character) for character in self.prompt]
        return text_of(expected_tokens(prompt, seed=self.seed, max_tokens=self.max_tokens))

    @property
    def body(self) -> dict[str, object]:
        """As JSON of /v1/completions."""
        return {
            "model": NAME,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "temperature": 1.0,
            "stream": self.stream,
        }


@dataclass
class _Reading:
    """What has come of one stream so far."""

    since: float = field(default_factory=time.monotonic)
    text: str = ""
    pause_s: float = 0.0
    finish_reason: str | None = None
    error: str = ""
    is_done: bool = False

    def take(self, line: str) -> None:
        if not line.startswith("data: "):
            return
        now = time.monotonic()
        self.pause_s, self.since = max(self.pause_s, now - self.since), now
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            self.is_done = True
            return
        frame = json.loads(data)
        if "error" in frame:
            self.error = json.dumps(frame["error"])
            return
        for choice in frame["choices"]:
            self.text += choice["text"]
            self.finish_reason = choice["finish_reason"] or self.finish_reason

    def judge(self, ask: Ask, broken: str) -> Outcome:
        right = ask.text
        # Serve adds a clean end to the stream of a gateway that died; it claims no [DONE].
        detail = (
            f"{len(self.text)} of {len(right)} end={self.finish_reason} done={self.is_done} "
            f"error={self.error} broken={broken}"
        )
        if not right.startswith(self.text):
            return Outcome(Verdict.WRONG, self.pause_s, f"{self.text!r} is not {right!r} {detail}")
        if self.is_done and self.text == right and self.finish_reason == "length":
            return Outcome(Verdict.WHOLE, self.pause_s)
        if not self.is_done and not self.error:
            return Outcome(Verdict.CUT, self.pause_s, detail)
        return Outcome(Verdict.WRONG, self.pause_s, detail)


async def ask_once(client: httpx.AsyncClient, ask: Ask) -> Outcome:
    """Send one request and read it to whatever end it has."""
    return await (_stream if ask.stream else _whole)(client, ask)


async def _stream(client: httpx.AsyncClient, ask: Ask) -> Outcome:
    reading, broken = _Reading(), ""
    try:
        async with client.stream("POST", "/v1/completions", json=ask.body) as answer:
            if answer.status_code != 200:
                detail = f"{answer.status_code} {(await answer.aread())[:300]!r}"
                return _refused(answer.status_code, detail, reading.since)
            async for line in answer.aiter_lines():
                reading.take(line)
    except httpx.TransportError as error:
        broken = repr(error)
    return reading.judge(ask, broken)


async def _whole(client: httpx.AsyncClient, ask: Ask) -> Outcome:
    since = time.monotonic()
    try:
        answer = await client.post("/v1/completions", json=ask.body)
    except httpx.TransportError as error:
        return Outcome(Verdict.CUT, time.monotonic() - since, repr(error))
    if answer.status_code != 200:
        return _refused(answer.status_code, f"{answer.status_code} {answer.text[:300]}", since)
    text = answer.json()["choices"][0]["text"]
    if text != ask.text:
        return Outcome(Verdict.WRONG, 0.0, f"{text!r} is not {ask.text!r}")
    return Outcome(Verdict.WHOLE, time.monotonic() - since)


def _refused(status: int, detail: str, since: float) -> Outcome:
    """A server's error before the first token is an ending; a client's fault it never is."""
    verdict = Verdict.CUT if status >= 500 else Verdict.WRONG
    return Outcome(verdict, time.monotonic() - since, detail)


class Load:
    """Long streams from the start, and short requests one after the other until told to stop."""

    def __init__(self, url: str, rng: random.Random) -> None:
        limits = httpx.Limits(max_connections=200, max_keepalive_connections=0)
        self._client = httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S, limits=limits)
        self._rng = rng
        self._asked: list[asyncio.Task[Outcome]] = []
        self._is_stopping = False

    def _ask(self, max_tokens: int, *, stream: bool = True) -> None:
        stem = self._rng.choice(_STEMS)
        tail = "".join(self._rng.choice("ijklmnop") for _ in range(self._rng.randrange(8, 24)))
        ask = Ask(stem + tail, self._rng.getrandbits(31), max_tokens, stream)
        self._asked.append(asyncio.create_task(ask_once(self._client, ask)))

    def begin(self, num_streams: int, max_tokens: int) -> None:
        """Open streams that are still running when the fault comes."""
        for _ in range(num_streams):
            self._ask(max_tokens)

    async def keep_asking(self, every_s: float) -> None:
        """Short requests, every other one as a stream, until `stop`."""
        number = 0
        while not self._is_stopping:
            self._ask(16, stream=number % 2 == 0)
            number += 1
            await asyncio.sleep(every_s)

    def stop(self) -> None:
        """Ask nothing new."""
        self._is_stopping = True

    async def outcomes(self) -> list[Outcome]:
        """How everything ended, once it has."""
        try:
            return list(await asyncio.gather(*self._asked))
        finally:
            await self._client.aclose()
