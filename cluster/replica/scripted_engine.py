"""An engine without a model or a scheduler: tokens by arithmetic, at a chosen pace, in a thread.

It keeps the contract of replicas.engine_client (admission first, one output a step, a refusal or
an end for every request), so the whole way from HTTP to a replica and back can be run, measured
and broken without weights.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from replicas.config import EngineConfig
from replicas.engine_info import EngineInfo
from replicas.engine_stats import EngineStats
from replicas.engine_view import RowKind, StepRow, ViewRecorder
from replicas.handoff import HandoffIn, HandoffNews, HandoffOut, HandoffOutcome
from replicas.request import (
    EngineRequest,
    FinishReason,
    Refusal,
    RefusalReason,
    Timeline,
    TokenEntry,
)
from replicas.step_output import StepOutput
from replicas.store_mover import StoreAccess

_CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class EngineScript:
    """How the engine behaves.

    step_s: time of one step. vocab_size: token ids are below it. max_open: more open requests
    than this are refused. crash_token_id: a prompt that holds this token ends the core, as a
    killed process would. start_s: how long a core takes to start. publish, adopt: what comes of
    the hand-offs that it is asked for; None: nothing is ever told.
    """

    step_s: float = 0.0
    vocab_size: int = 1000
    max_open: int = 1024
    crash_token_id: int | None = None
    start_s: float = 0.0
    fingerprint: str = "scripted"
    publish: HandoffOutcome | None = "published"
    adopt: HandoffOutcome | None = "adopted"


@dataclass(slots=True)
class _Running:
    request: EngineRequest
    arrived_at: float
    next_index: dict[int, int]
    first_token_at: float | None = None
    is_handed: bool = False


def scripted_token(request: EngineRequest, *, choice: int, index: int, vocab_size: int) -> int:
    """The token that any scripted engine gives there: it depends on nothing else."""
    return (sum(request.prompt_token_ids) + 31 * choice + index) % vocab_size


class ScriptedEngine:
    """One core; `on_output` and `on_exit` are called from its own thread."""

    def __init__(
        self,
        script: EngineScript,
        config: EngineConfig,
        *,
        on_output: Callable[[StepOutput], None],
        on_exit: Callable[[str], None],
    ) -> None:
        time.sleep(script.start_s)
        self._script = script
        self._on_output = on_output
        self._on_exit = on_exit
        self._commands: list[Callable[[], None]] = []
        self._entries: list[TokenEntry] = []
        self._running: dict[tuple[str, int], _Running] = {}
        self._wake = threading.Condition()
        self._may_step = threading.Event()
        self._may_step.set()
        self._closing = False
        self._crash = threading.Event()
        self._stats = EngineStats(max_num_seqs=config.scheduler.max_num_seqs)
        self._finished_total = 0
        self._cancelled_total = 0
        self._generated_total = 0
        self._step = 0
        self._num_rows = 0
        self._run_s = 0.0
        self._view = ViewRecorder(time.monotonic)
        self.expected: list[str] = []
        self.info = _info(script, config)
        self._thread = threading.Thread(target=self._run, name="scripted-engine", daemon=True)
        self._thread.start()

    def submit(self, request: EngineRequest) -> None:
        """Serve a request."""
        self._command(lambda: self._admit(request))

    def prefetch(self, request: EngineRequest) -> None:
        """It has no blocks to fetch; remembers who was expected."""
        self._command(lambda: self.expected.append(request.request_id))

    def cancel(self, request_id: str, attempt: int) -> None:
        """End a request whose client left."""
        self._command(lambda: self._cancel((request_id, attempt)))

    def finish_choice(self, request_id: str, attempt: int, choice: int) -> None:
        """End one choice normally, for a stop string in its text."""
        self._command(lambda: self._finish((request_id, attempt), choice, FinishReason.STOP_STRING))

    def watch(self, seconds: float) -> None:
        """Let outputs carry views of what happens, for so long from now on."""
        self._command(lambda: self._view.watch(seconds))

    def crash(self) -> None:
        """End the core as a killed process would: at once, in a step or not, without a word."""
        self._crash.set()
        self._may_step.set()
        with self._wake:
            self._wake.notify()

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Make no step meanwhile, like an engine that hangs."""
        self._may_step.clear()
        try:
            yield
        finally:
            self._may_step.set()

    @property
    def running_ids(self) -> set[str]:
        """Ids of the requests that it has open."""
        return {request_id for request_id, _ in list(self._running)}

    @property
    def num_running(self) -> int:
        """Requests that it has open."""
        return len(self._running)

    @property
    def num_cancelled(self) -> int:
        """Requests that were cancelled."""
        return self._cancelled_total

    def close(self) -> None:
        """End the engine; no callback comes after this returns."""
        self._may_step.set()
        with self._wake:
            self._closing = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _command(self, command: Callable[[], None]) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._commands or self._running or self._is_ending):
                    self._wake.wait()
                if self._closing:
                    return
                commands, self._commands = self._commands, []
            for command in commands:
                command()
            self._advance()
            if self._crash.is_set():
                self._running.clear()
                self._on_exit("the scripted core was told to crash")
                return

    @property
    def _is_ending(self) -> bool:
        return self._closing or self._crash.is_set()

    def _advance(self) -> None:
        started_at = time.monotonic()
        self._may_step.wait()
        if self._crash.wait(self._script.step_s):
            return
        if self._view.is_watching:
            rows = [
                StepRow(lane, request_id, 0, RowKind.DECODE, 1)
                for lane, (request_id, _) in enumerate(self._running)
            ]
            self._view.note_step(rows, started_at=started_at, ended_at=time.monotonic())
        self._num_rows = len(self._running)
        for key, running in list(self._running.items()):
            for choice in list(running.next_index):
                if isinstance(running.request.handoff, HandoffOut) and running.first_token_at:
                    self._hand_over(key, running)
                else:
                    self._give_token(key, running, choice)
        self._step += 1
        self._run_s = time.monotonic() - started_at
        entries, self._entries = tuple(self._entries), []
        view = None
        if self._view.is_watching:
            view = self._view.take(self._block_states, is_idle=not self._running)
        self._on_output(StepOutput(stats=self._snapshot(), entries=entries, view=view))

    def _block_states(self) -> bytes:
        """It has no blocks: all of them are free."""
        return bytes(self.info.num_blocks)

    def _give_token(self, key: tuple[str, int], running: _Running, choice: int) -> None:
        request = running.request
        index = running.next_index[choice]
        running.next_index[choice] = index + 1
        is_first = index == len(request.emitted_token_ids)
        running.first_token_at = running.first_token_at or time.monotonic()
        self._generated_total += 1
        is_last = index + 1 >= request.sampling.max_tokens
        token_id = scripted_token(
            request, choice=choice, index=index, vocab_size=self._script.vocab_size
        )
        self._entries.append(
            TokenEntry(
                request_id=request.request_id,
                attempt=request.attempt,
                choice=choice,
                index=index,
                token_ids=(token_id,),
                finish_reason=FinishReason.LENGTH if is_last else None,
                timeline=self._timeline(running) if is_first or is_last else None,
            )
        )
        if is_last:
            self._forget(key, choice)

    def _hand_over(self, key: tuple[str, int], running: _Running) -> None:
        """Say once what came of publishing; a hand-off that failed is over."""
        outcome = self._script.publish
        if running.is_handed or outcome is None:
            return
        running.is_handed = True
        self._tell(running.request, outcome, index=running.next_index[0])
        if outcome != "published":
            self._finish(key, 0, FinishReason.HANDED_OFF)

    def _tell(self, request: EngineRequest, outcome: HandoffOutcome, *, index: int) -> None:
        assert request.handoff is not None
        news = HandoffNews(
            request.handoff.generation, outcome, len(request.prompt_token_ids), transport="script"
        )
        entry = TokenEntry(request.request_id, request.attempt, choice=0, index=index, handoff=news)
        self._entries.append(entry)

    def _admit(self, request: EngineRequest) -> None:
        if self._script.crash_token_id in request.prompt_token_ids:
            self._crash.set()
            return
        entry = TokenEntry(request.request_id, request.attempt, choice=0, index=0)
        if len(self._running) >= self._script.max_open:
            refusal = Refusal(RefusalReason.QUEUE_FULL, "The waiting line is full.", 1.0)
            entry = TokenEntry(
                request.request_id,
                request.attempt,
                choice=0,
                index=0,
                finish_reason=FinishReason.REFUSED,
                refusal=refusal,
            )
        else:
            first = len(request.emitted_token_ids)
            self._running[(request.request_id, request.attempt)] = _Running(
                request, time.monotonic(), dict.fromkeys(range(request.num_choices), first)
            )
        self._entries.append(entry)
        if isinstance(request.handoff, HandoffIn) and self._script.adopt is not None:
            self._tell(request, self._script.adopt, index=len(request.emitted_token_ids))

    def _cancel(self, key: tuple[str, int]) -> None:
        if key in self._running:
            for choice in list(self._running[key].next_index):
                self._finish(key, choice, FinishReason.CANCELLED)
            self._cancelled_total += 1

    def _finish(self, key: tuple[str, int], choice: int, reason: FinishReason) -> None:
        running = self._running.get(key)
        if running is None or choice not in running.next_index:
            return
        if isinstance(running.request.handoff, HandoffOut) and reason is FinishReason.STOP_STRING:
            reason = FinishReason.HANDED_OFF
        self._entries.append(
            TokenEntry(
                request_id=key[0],
                attempt=key[1],
                choice=choice,
                index=running.next_index[choice],
                finish_reason=reason,
                timeline=self._timeline(running),
            )
        )
        self._forget(key, choice)

    def _forget(self, key: tuple[str, int], choice: int) -> None:
        running = self._running[key]
        del running.next_index[choice]
        if not running.next_index:
            del self._running[key]
            self._finished_total += 1

    def _timeline(self, running: _Running) -> Timeline:
        return Timeline(
            arrived_at=running.arrived_at,
            scheduled_at=running.arrived_at,
            first_token_at=running.first_token_at,
            finished_at=time.monotonic(),
            received_at=running.arrived_at,
        )

    def _snapshot(self) -> EngineStats:
        return EngineStats(
            step=self._step,
            at=time.monotonic(),
            max_num_seqs=self._stats.max_num_seqs,
            num_blocks=self.info.num_blocks,
            block_size=self.info.block_size,
            num_free_blocks=self.info.num_blocks,
            num_running=len(self._running),
            num_rows=self._num_rows,
            num_decode_tokens=self._num_rows,
            run_s=self._run_s,
            generated_tokens_total=self._generated_total,
            finished_total=self._finished_total,
            cancelled_total=self._cancelled_total,
        )


@dataclass(frozen=True, slots=True)
class StartScriptedEngine:
    """Stands in for replicas.engine_client.start_engine; can be sent to another process."""

    script: EngineScript = EngineScript()

    def __call__(
        self,
        config: EngineConfig,
        *,
        on_output: Callable[[StepOutput], None],
        on_exit: Callable[[str], None],
        store: StoreAccess | None = None,
    ) -> ScriptedEngine:
        """Start a core and wait until it can serve; it has no blocks to store."""
        return ScriptedEngine(self.script, config, on_output=on_output, on_exit=on_exit)


def _info(script: EngineScript, config: EngineConfig) -> EngineInfo:
    return EngineInfo(
        model=config.model,
        fingerprint=script.fingerprint,
        role=config.role,
        dtype="float32",
        kernels="scripted",
        deterministic=True,
        num_threads=1,
        num_blocks=config.scheduler.num_blocks,
        block_size=config.scheduler.block_size,
        block_bytes=0,
        max_model_len=config.scheduler.max_model_len,
        max_num_seqs=config.scheduler.max_num_seqs,
        phases=(("start", script.start_s),),
    )
