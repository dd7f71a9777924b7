"""Hand-offs of which a third are cancelled anywhere: the others are right, and nothing is left."""

import random
import time

import pytest

from replicas.engine import Engine
from replicas.engine_commands import Cancel, FinishChoice
from replicas.request import EngineRequest, TokenEntry
from tests.replicas.engine_harness import prompt, submit
from tests.replicas.memory.pools import Pools, ask, expected, inward, outward, rest

pytestmark = pytest.mark.slow
NUM_ROUNDS = 10
NUM_REQUESTS = 12
CANCELLED_SHARE = 0.3


class Client:
    """One request on its way through two engines; may give up at any step."""

    def __init__(self, one: EngineRequest, prefill: Engine, decode: Engine, gives_up_at: int):
        self.one = one
        self.tokens: list[int] = []
        self.has_ended = False
        self.has_given_up = False
        self._prefill, self._decode = prefill, decode
        self._gives_up_at = gives_up_at
        submit(prefill, outward(one))

    def step(self, number: int) -> None:
        """Time passes; at its moment the client leaves both engines."""
        if number == self._gives_up_at and not self.has_ended:
            self.has_given_up = True
            for engine, attempt in ((self._prefill, 0), (self._decode, 1)):
                engine.inbox.put(Cancel(self.one.request_id, attempt))

    def hear(self, entry: TokenEntry, *, is_decode: bool) -> None:
        self.tokens += entry.token_ids
        if entry.handoff is not None and not self.has_given_up:
            if is_decode:
                self._prefill.inbox.put(FinishChoice(self.one.request_id, 0, 0))
            else:
                submit(self._decode, inward(self.one, self.tokens))
        if is_decode and entry.finish_reason is not None:
            self.has_ended = True


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_third_gives_up_in_every_round_and_nothing_is_left(async_scheduling):
    pools = Pools()
    settings = {"num_blocks": 40, "preemption_mode": "swap", "async_scheduling": async_scheduling}
    prefill, decode = pools.start(**settings), pools.start(**settings)
    chance = random.Random(7)
    for round_number in range(NUM_ROUNDS):
        clients = {}
        for index in range(NUM_REQUESTS):
            name = f"r{round_number}-{index}"
            one = ask(name, prompt(9 + 2 * index, seed=index), seed=index)
            gives_up_at = chance.randrange(20) if chance.random() < CANCELLED_SHARE else -1
            clients[name] = Client(one, prefill, decode, gives_up_at)
        run_round(clients, prefill, decode)
        for client in clients.values():
            if not client.has_given_up:
                assert client.tokens == expected(client.one)
        for engine in (prefill, decode):
            rest(engine)
            assert engine.stats.num_held_slots == 0
        assert len(pools.tables) == 0
        assert not any(pools.memory.is_pinned(key) for key, _bytes in pools.memory.entries())
    pools.close()


def run_round(clients: dict[str, Client], prefill: Engine, decode: Engine) -> None:
    deadline = time.monotonic() + 20.0
    number = 0
    while not all(client.has_ended or client.has_given_up for client in clients.values()):
        assert time.monotonic() < deadline
        for client in clients.values():
            client.step(number)
        number += 1
        for engine in (prefill, decode):
            output = engine.step()
            engine.check()
            for entry in output.entries if output is not None else ():
                clients[entry.request_id].hear(entry, is_decode=engine is decode)
        time.sleep(0.0005)
