"""Two pools of engines over one store, and requests that go from one to the other."""

import time
from dataclasses import replace

from kvstore.handoff_tables import MemoryHandoffTables
from kvstore.memory_store import Memory
from kvstore.store_transport import StoreTransport
from replicas.engine import Engine
from replicas.handoff import HandoffIn, HandoffNews, HandoffOut
from replicas.request import EngineRequest, TokenEntry
from replicas.store_mover import HandoffAccess
from tests.replicas.engine_harness import alone, prompt, request, submit
from tests.replicas.memory.stores import Engines, shared_memory_store

PROMPT = prompt(26)
GENERATION = 3


class Pools:
    """Engines over one store and one set of tables."""

    def __init__(self, **settings: object) -> None:
        self.memory = Memory(max_bytes=1 << 20, clock=time.monotonic)
        self.tables = MemoryHandoffTables(clock=time.monotonic)
        self._engines = Engines(
            lambda: shared_memory_store(self.memory),
            open_handoffs=lambda store: HandoffAccess(
                self.tables, lambda _buffer: [StoreTransport(store, self.tables)]
            ),
            **settings,
        )
        self.started: list[Engine] = []

    def start(self, **overrides: object) -> Engine:
        self.started.append(self._engines.start(store_write_back="never", **overrides))
        return self.started[-1]

    def close(self) -> None:
        for engine in self.started:
            engine.close()
        self._engines.close()


def ask(name: str = "a", tokens: list[int] = PROMPT, *, max_tokens: int = 6, **kwargs: object):
    return request(name, tokens, max_tokens=max_tokens, **kwargs)


def outward(one: EngineRequest, *, generation: int = GENERATION, deadline_s: float = 10.0):
    return replace(one, handoff=HandoffOut(generation, deadline_s))


def inward(
    one: EngineRequest, first: list[int], *, generation: int = GENERATION, deadline_s: float = 10.0
):
    handoff = HandoffIn(generation, deadline_s)
    return replace(one, attempt=1, emitted_token_ids=tuple(first), handoff=handoff)


def entries_until(engine: Engine, is_enough, *, timeout_s: float = 10.0) -> list[TokenEntry]:
    """What the engine says until some entry is what the test waits for."""
    found: list[TokenEntry] = []
    deadline = time.monotonic() + timeout_s
    while not any(is_enough(entry) for entry in found):
        assert time.monotonic() < deadline, found
        output = engine.step()
        engine.check()
        if output is not None:
            found.extend(output.entries)
        elif engine.is_waiting:
            engine.inbox.wait(0.001)
    return found


def rest(engine: Engine) -> None:
    """Until nothing is left to do and every slot is given back."""
    deadline = time.monotonic() + 10.0
    while engine.has_work or engine.stats.tiers.num_pinned_host_slots:
        assert time.monotonic() < deadline, engine.stats.tiers
        engine.step()
        engine.check()
        engine.inbox.wait(0.001)


def news_of(entries: list[TokenEntry]) -> HandoffNews:
    (news,) = [entry.handoff for entry in entries if entry.handoff is not None]
    return news


def tokens_of(entries: list[TokenEntry]) -> list[int]:
    return [token for entry in entries for token in entry.token_ids]


def has_news(entry: TokenEntry) -> bool:
    return entry.handoff is not None


def has_ended(entry: TokenEntry) -> bool:
    return entry.finish_reason is not None


def prefill(engine: Engine, one: EngineRequest, **handoff: object) -> list[TokenEntry]:
    submit(engine, outward(one, **handoff))
    return entries_until(engine, has_news)


def decode(engine: Engine, one: EngineRequest, first: list[int], **handoff: object):
    submit(engine, inward(one, first, **handoff))
    return entries_until(engine, has_ended)


def expected(one: EngineRequest) -> list[int]:
    return alone(one)[one.request_id, 0]
