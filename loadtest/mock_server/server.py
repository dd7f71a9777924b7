"""Binds the mock's parts to a loopback socket: routes, the waiting line, and the truth."""

import asyncio
import time
from collections import deque
from dataclasses import asdict
from typing import Any

import orjson

from loadtest.mock_server.answer import Answer, AnswerOptions, Truth
from loadtest.mock_server.events import EventFactory, error_json
from loadtest.mock_server.http_protocol import HttpProtocol
from loadtest.mock_server.profile import AnswerPlan, AnswerPlanner, MockProfile

MAX_TRUTHS = 200_000
CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"


class MockServer:
    """An OpenAI-compatible server that makes its tokens up, on time.

    Routes: POST /v1/completions and /v1/chat/completions, GET /v1/models, /health,
    /mock/requests (the truth about every request so far) and DELETE of the same (forget it).
    """

    def __init__(self, profile: MockProfile) -> None:
        self.profile = profile
        self.truths: deque[Truth] = deque(maxlen=MAX_TRUTHS)
        self._planner = AnswerPlanner(profile)
        self._running = 0
        self._waiting: deque[Answer] = deque()
        self._first_request_at: float | None = None
        self._server: asyncio.Server | None = None
        self._count = 0

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen; returns the port (a free one for port 0). Raises OSError if it is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: HttpProtocol(self._route), host, port, backlog=4096
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and cut every connection."""
        if self._server is not None:
            self._server.close()
            for answer in list(self._waiting):
                answer.cancel()

    def _route(self, connection: HttpProtocol, method: str, path: str, body: bytes) -> None:
        if method == "POST" and path in (CHAT_PATH, TEXT_PATH):
            self._complete(connection, body, chat=path == CHAT_PATH)
        elif path == "/v1/models":
            model = {"id": self.profile.model, "object": "model", "owned_by": "mock"}
            connection.respond(200, orjson.dumps({"object": "list", "data": [model]}))
        elif path == "/health":
            connection.respond(200, b"{}")
        elif path == "/mock/requests":
            connection.respond(200, orjson.dumps([asdict(truth) for truth in self.truths]))
            if method == "DELETE":
                self.truths.clear()
        else:
            connection.respond(404, error_json(f"no route {path}", "NotFoundError", 404))

    def _complete(self, connection: HttpProtocol, raw: bytes, *, chat: bool) -> None:
        received_at = time.monotonic()
        self._note_first_request(received_at)
        try:
            body = orjson.loads(raw)
            prompt_tokens = self._count_prompt_tokens(body, chat=chat)
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            text = f"cannot read the request: {error!r}"
            connection.respond(400, error_json(text, "BadRequestError", 400))
            return
        truth = Truth(connection.request_id, received_at, prompt_tokens)
        self.truths.append(truth)
        self._admit(connection, body, truth, chat=chat)

    def _admit(
        self, connection: HttpProtocol, body: dict[str, Any], truth: Truth, *, chat: bool
    ) -> None:
        profile = self.profile
        plan = self._planner.plan(
            prompt_tokens=truth.prompt_tokens,
            output_tokens=self._wanted_tokens(body),
            slowdown=self._slowdown(truth.received_at),
        )
        if plan.outcome == "error":
            truth.outcome = "error"
            status = profile.error_status
            connection.respond(status, error_json("planned error", "MockError", status))
            return
        if self._is_full():
            truth.outcome = "refused"
            text = error_json("the waiting line is full", "ServiceUnavailable", 503)
            connection.respond(503, text, retry_after_s=1)
            return
        answer = self._new_answer(connection, body, truth, plan=plan, chat=chat)
        if profile.max_num_running and self._running >= profile.max_num_running:
            self._waiting.append(answer)
        else:
            self._run(answer)

    def _new_answer(
        self,
        connection: HttpProtocol,
        body: dict[str, Any],
        truth: Truth,
        *,
        plan: AnswerPlan,
        chat: bool,
    ) -> Answer:
        self._count += 1
        options = body.get("stream_options") or {}
        usage = self.profile.reports_usage
        events = EventFactory(
            chat=chat,
            model=self.profile.model,
            answer_id=f"mock-{self._count}",
            usage_each=usage and bool(options.get("continuous_usage_stats")),
        )
        wishes = AnswerOptions(
            stream=bool(body.get("stream")),
            num_choices=int(body.get("n") or 1),
            include_usage=usage and bool(options.get("include_usage")),
            tokens_per_chunk=self.profile.tokens_per_chunk,
        )
        return Answer(connection, plan, truth, events=events, options=wishes, on_end=self._on_end)

    def _run(self, answer: Answer) -> None:
        self._running += 1
        answer.truth.outcome = "running"
        answer.start()

    def _on_end(self, answer: Answer) -> None:
        if not answer.has_started:
            self._waiting.remove(answer)
            return
        self._running -= 1
        limit = self.profile.max_num_running
        while self._waiting and self._running < limit:
            self._run(self._waiting.popleft())

    def _is_full(self) -> bool:
        limit = self.profile.max_num_queued
        busy = self._running >= self.profile.max_num_running > 0
        return limit is not None and busy and len(self._waiting) >= limit

    def _count_prompt_tokens(self, body: dict[str, Any], *, chat: bool) -> int:
        profile = self.profile
        if not chat:
            prompt = body["prompt"]
            words = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
            return round(words * profile.tokens_per_word)
        words = sum(len(str(message["content"]).split()) for message in body["messages"])
        return round(words * profile.tokens_per_word) + profile.template_tokens

    def _wanted_tokens(self, body: dict[str, Any]) -> int:
        wanted = body.get("max_tokens") or body.get("max_completion_tokens")
        return int(wanted or self.profile.output_tokens)

    def _slowdown(self, now: float) -> float:
        assert self._first_request_at is not None
        is_cold = now - self._first_request_at < self.profile.slow_start_s
        return self.profile.slow_start_factor if is_cold else 1.0

    def _note_first_request(self, now: float) -> None:
        if self._first_request_at is not None:
            return
        self._first_request_at = now
        if self.profile.stall_s > 0:
            # A blocked loop, on purpose: nothing is read or written while it lasts.
            loop = asyncio.get_running_loop()
            loop.call_later(self.profile.stall_at_s, time.sleep, self.profile.stall_s)
