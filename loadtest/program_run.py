"""Carries one program through its calls: writes prompts, waits for pauses, cancels, records."""

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from loadtest.call_record import CallRecord
from loadtest.config import TrafficConfig
from loadtest.http_client import StreamingClient
from loadtest.program import Call, Program, Step
from loadtest.progress import Progress
from loadtest.prompt_writer import PromptWriter

# uvloop's timers count whole milliseconds; what is left below this is waited in short turns.
TIMER_GRAIN_S = 0.0003

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A request whose bytes are ready, so that nothing is left to do when it is due."""

    body: bytes
    messages: list[Message]
    record: CallRecord
    cancel_after_s: float | None


@dataclass(slots=True)
class RunContext:
    """What all programs of a process share: the client, the writer, and where results go."""

    client: StreamingClient
    writer: PromptWriter
    traffic: TrafficConfig
    clock: Callable[[], float]
    progress: Progress = field(default_factory=Progress)
    records: list[CallRecord] = field(default_factory=list)
    open_records: dict[str, CallRecord] = field(default_factory=dict)
    slots: asyncio.Semaphore | None = None

    async def sleep_until(self, at: float) -> None:
        """Sleep until the clock shows `at`, a third of a millisecond early at most."""
        left_s = at - self.clock()
        while left_s > TIMER_GRAIN_S:
            await asyncio.sleep(left_s)
            left_s = at - self.clock()


class ProgramRun:
    """One program on its way; `prepare` is for ahead of time, `run` for when it is due."""

    def __init__(self, program: Program, name: str, context: RunContext) -> None:
        self._program = program
        self._name = name
        self._context = context
        self._history: list[Message] = []
        self._first: list[PreparedCall] = []

    def prepare(self) -> None:
        """Write the first step's requests."""
        self._first = self._prepare_step(0, self._program.steps[0])

    async def run(self, due_at: float) -> None:
        """Send every step in turn, the first at `due_at`; stops after a step that failed."""
        calls = self._first or self._prepare_step(0, self._program.steps[0])
        for index, step in enumerate(self._program.steps):
            if index:
                due_at = self._context.clock() + step.pause_s
                calls = self._prepare_step(index, step)
                await self._context.sleep_until(due_at)
            if not await self._run_step(calls, due_at):
                return

    async def _run_step(self, calls: list[PreparedCall], due_at: float) -> bool:
        if len(calls) == 1:
            await self._send(calls[0], due_at)
        else:
            async with asyncio.TaskGroup() as group:
                for call in calls:
                    group.create_task(self._send(call, due_at))
        for call in calls:
            new = call.messages[len(self._history) :] if call is calls[0] else call.messages[-1:]
            self._history += [*new, {"role": "assistant", "content": call.record.text}]
        return all(call.record.outcome == "finished" for call in calls)

    def _prepare_step(self, step_index: int, step: Step) -> list[PreparedCall]:
        return [
            self._prepare_call(call, f"{self._name}-{step_index}-{index}")
            for index, call in enumerate(step.calls)
        ]

    def _prepare_call(self, call: Call, request_id: str) -> PreparedCall:
        context, writer = self._context, self._context.writer
        text = writer.write(call.parts, less_tokens=writer.scale.overhead_tokens)
        given = [
            {"role": role, "content": part if isinstance(part, str) else writer.write(part)}
            for role, part in call.messages
        ]
        messages = [*self._history, *given, {"role": "user", "content": text}]
        body = context.client.backend.body(
            messages, output_tokens=call.output_tokens, num_choices=call.num_choices
        )
        tokens = call.prompt_tokens or writer.count_tokens(call.parts)
        record = CallRecord(
            request_id,
            self._program.session,
            scheduled_at=0.0,
            wanted_output_tokens=call.output_tokens,
            prompt_tokens=tokens,
            num_choices=call.num_choices,
        )
        return PreparedCall(body, messages, record, self._cancel_after_s(request_id))

    def _cancel_after_s(self, request_id: str) -> float | None:
        traffic = self._context.traffic
        if traffic.cancel_ratio == 0.0:
            return None
        rng = random.Random(f"cancel {traffic.seed} {request_id}")
        return traffic.cancel_after_s.draw(rng) if rng.random() < traffic.cancel_ratio else None

    async def _send(self, call: PreparedCall, due_at: float) -> None:
        context, record = self._context, call.record
        record.scheduled_at = due_at
        context.records.append(record)
        waits_from = context.clock()
        slot: AbstractAsyncContextManager[None] = context.slots or nullcontext()
        async with slot:
            record.queue_s = context.clock() - waits_from if context.slots else 0.0
            context.open_records[record.request_id] = record
            context.progress.sent += 1
            context.progress.running += 1
            try:
                async with asyncio.timeout(call.cancel_after_s):
                    await context.client.send(call.body, record)
            except TimeoutError:
                record.outcome = "cancelled"
            finally:
                del context.open_records[record.request_id]
                self._count(record)

    def _count(self, record: CallRecord) -> None:
        progress = self._context.progress
        progress.running -= 1
        progress.output_tokens += record.output_tokens
        progress.lags_s.append(record.lag_s)
        progress.finished += record.outcome == "finished"
        progress.failed += record.outcome == "failed"
        progress.cancelled += record.outcome == "cancelled"
        if record.chunk_at:
            progress.ttfts_s.append(record.ttft_s)
            if (tpot_s := record.tpot_s) is not None:
                progress.tpots_s.append(tpot_s)
