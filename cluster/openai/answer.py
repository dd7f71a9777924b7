"""Answers with a generation, and ends it at once when the client leaves or nothing happens."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from cluster.errors import DispatchError
from cluster.metrics.call_meter import CallMeter
from cluster.openai.api_error import ApiError, from_dispatch_error, internal_error
from cluster.openai.generation import Generation

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """keep_alive_s: a stream without news this long gets a comment line, so that no proxy cuts it.
    max_silence_s: a request without news this long is given up."""

    keep_alive_s: float
    max_silence_s: float


class ClientLeft(ConnectionError):
    """The connection is gone: nobody is there to be told anything."""


class WatchedSend:
    """The ASGI send, which knows whether the client is taking what it is sent.

    Raises ClientLeft where a server reports a lost connection.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_waiting = False
        self.num_sent = 0

    async def __call__(self, message: Message) -> None:
        self.is_waiting = True
        try:
            await self._send(message)
        except OSError as error:
            raise ClientLeft from error
        self.is_waiting = False
        self.num_sent += 1


class AnswerWriter(Protocol):
    """The form of an answer: whole, or as a stream."""

    async def write(self, generation: Generation, send: Send) -> None:
        """Send the whole answer as the generation goes on."""
        ...

    async def keep_alive(self, send: Send) -> None:
        """Show that the request lives, if this form has a way to."""
        ...

    async def fail(self, error: ApiError, send: Send) -> None:
        """Say that it failed, and end the answer."""
        ...


class GenerationAnswer(Response):
    """Runs a generation in a task of its own, beside a watch for the client's disconnect.

    The task owns the generation, so its feeds are closed whichever way the task ends, and a
    cancelled HTTP request cannot interrupt that.
    """

    def __init__(
        self,
        generation: Generation,
        writer: AnswerWriter,
        *,
        request_id: str,
        patience: Patience,
        meter: CallMeter,
    ) -> None:
        super().__init__()
        self._generation = generation
        self._writer = writer
        self._request_id = request_id
        self._patience = patience
        self._meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; returns when everything is sent, or the client has left."""
        watched = WatchedSend(send)
        work = asyncio.create_task(self._run(watched))
        left = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            silent_s = await self._wait_for_end(work, left, watched)
        finally:
            left.cancel()
            work.cancel()
            await asyncio.wait([work, left])
        if silent_s is not None and not watched.is_waiting:
            message = f"Nothing happened for {silent_s:.0f} seconds; the request was given up."
            await self._writer.fail(internal_error(message), watched)

    async def _wait_for_end(
        self, work: "asyncio.Task[None]", left: "asyncio.Task[None]", send: WatchedSend
    ) -> float | None:
        """None when the work or the client is gone; the seconds of silence if it was too long."""
        tick_s = min(self._patience.keep_alive_s, self._patience.max_silence_s)
        news, silent_s = self._news(send), 0.0
        while True:
            await asyncio.wait([work, left], timeout=tick_s, return_when=asyncio.FIRST_COMPLETED)
            if work.done() or left.done():
                return None
            silent_s = silent_s + tick_s if news == self._news(send) else 0.0
            if silent_s >= self._patience.max_silence_s:
                self._meter.was_given_up = True
                log.warning("generation silent id=%s silent_s=%.0f", self._request_id, silent_s)
                return silent_s
            # A client that takes nothing would hold up this watch, too.
            if silent_s and not send.is_waiting:
                await self._writer.keep_alive(send)
            news = self._news(send)

    def _news(self, send: WatchedSend) -> tuple[int, bool]:
        return self._generation.num_entries, send.is_waiting

    async def _run(self, send: WatchedSend) -> None:
        try:
            with self._meter:
                async with self._generation:
                    await self._writer.write(self._generation, send)
        except ClientLeft:
            log.info("generation left id=%s", self._request_id)
        except asyncio.CancelledError:
            log.info("generation cancelled id=%s", self._request_id)
            raise
        except DispatchError as error:
            log.info("generation failed id=%s reason=%s", self._request_id, error)
            await self._writer.fail(from_dispatch_error(error), send)
        except Exception:
            log.exception("generation broken id=%s", self._request_id)
            await self._writer.fail(internal_error(), send)
        else:
            log.info(
                "generation finished id=%s prompt_tokens=%d completion_tokens=%d",
                self._request_id,
                self._generation.plan.num_prompt_tokens,
                self._generation.num_completion_tokens,
            )


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
