"""Plays one answer chunk by chunk at the planned times, and keeps the truth about it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from loadtest.mock_server.events import EventFactory, words_of
from loadtest.mock_server.http_protocol import HttpProtocol
from loadtest.mock_server.profile import AnswerPlan


@dataclass(slots=True)
class Truth:
    """What really happened to one request; stamps are monotonic seconds of this host."""

    request_id: str
    received_at: float
    prompt_tokens: int
    num_output_tokens: int = 0
    planned_ttft_s: float = 0.0
    chunk_sent_at: list[float] = field(default_factory=list)
    outcome: str = "waiting"


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """What the client asked for, as far as the mock cares."""

    stream: bool
    num_choices: int
    include_usage: bool
    tokens_per_chunk: int


class Answer:
    """One running answer; calls `on_end(answer)` exactly once, when it is over or cut off."""

    def __init__(
        self,
        connection: HttpProtocol,
        plan: AnswerPlan,
        truth: Truth,
        *,
        events: EventFactory,
        options: AnswerOptions,
        on_end: Callable[["Answer"], None],
    ) -> None:
        self._connection = connection
        self._plan = plan
        self.truth = truth
        self._events = events
        self._options = options
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._started_at = 0.0
        self.has_started = False
        self._chunk = 0
        self._sent_tokens = 0
        connection.on_lost = self.cancel

    def start(self) -> None:
        """Begin the planned delays now."""
        self._started_at = time.monotonic()
        self.has_started = True
        offsets = self._plan.chunk_offsets_s
        self.truth.planned_ttft_s = offsets[0] if self._options.stream else offsets[-1]
        self._schedule(offsets[0] if self._options.stream else offsets[-1])

    def cancel(self) -> None:
        """The client went away: stop, and tell."""
        if self._timer is not None:
            self._timer.cancel()
        self._end("cancelled")

    def _schedule(self, offset_s: float) -> None:
        # Absolute times: a late chunk must not make the following ones late too.
        fire = self._tick if self._options.stream else self._answer_whole
        left_s = self._started_at + offset_s - time.monotonic()
        self._timer = self._loop.call_later(max(left_s, 0.0), fire)

    def _tick(self) -> None:
        offsets = self._plan.chunk_offsets_s
        is_last = self._chunk == len(offsets) - 1
        events = self._next_events(is_last=is_last and self._plan.outcome == "answer")
        self.truth.chunk_sent_at.append(time.monotonic())
        if self._chunk == 0:
            role = self._events.role(num_choices=self._options.num_choices)
            self._connection.start_stream(role + events)
        else:
            self._connection.write_events(events)
        self._chunk += 1
        if not is_last:
            self._schedule(offsets[self._chunk])
        elif self._plan.outcome == "drop":
            self._end("dropped")
            self._connection.close()
        else:
            self._finish()

    def _next_events(self, *, is_last: bool) -> bytes:
        num_tokens = min(
            self._options.tokens_per_chunk, self._plan.num_output_tokens - self._sent_tokens
        )
        text = words_of(num_tokens, start=self._sent_tokens)
        self._sent_tokens += num_tokens
        self.truth.num_output_tokens = self._sent_tokens * self._options.num_choices
        return b"".join(
            self._events.text(
                index=index,
                text=text,
                finish=b'"length"' if is_last else b"null",
                prompt_tokens=self.truth.prompt_tokens,
                output_tokens=self._sent_tokens * self._options.num_choices,
            )
            for index in range(self._options.num_choices)
        )

    def _finish(self) -> None:
        usage = b""
        if self._options.include_usage:
            usage = self._events.usage(
                prompt_tokens=self.truth.prompt_tokens,
                output_tokens=self.truth.num_output_tokens,
            )
        self._connection.end_stream(usage + b"data: [DONE]\n\n")
        self._end("finished")

    def _answer_whole(self) -> None:
        num_tokens = self._plan.num_output_tokens
        self.truth.num_output_tokens = num_tokens * self._options.num_choices
        self.truth.chunk_sent_at.append(time.monotonic())
        body = self._events.whole(
            num_choices=self._options.num_choices,
            text=words_of(num_tokens, start=0),
            prompt_tokens=self.truth.prompt_tokens,
            output_tokens=self.truth.num_output_tokens,
        )
        self._connection.respond(200, body)
        self._end("finished")

    def _end(self, outcome: str) -> None:
        if self.truth.outcome in ("waiting", "running"):
            self.truth.outcome = outcome
            self._connection.on_lost = None
            self._on_end(self)
