"""Random traffic through the whole engine: whatever happens, nothing leaks and everyone ends."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.engine import Engine
from replicas.engine_commands import Cancel, ClearCache, FinishChoice
from replicas.request import BeamSearch, EngineRequest, FinishReason
from replicas.step_output import StepOutput
from tests.replicas.engine_harness import (
    VOCAB_SIZE,
    ManualClock,
    alone,
    engine,
    prompt,
    request,
    submit,
)

CONFIGS = st.fixed_dictionaries(
    {
        "num_blocks": st.sampled_from([12, 20, 40]),
        "max_num_seqs": st.integers(1, 6),
        "max_num_batched_tokens": st.sampled_from([6, 11, 32]),
        "long_prefill_token_threshold": st.sampled_from([0, 3]),
        "max_prefill_tokens": st.sampled_from([0, 1, 7]),
        "watermark": st.sampled_from([0.0, 0.2]),
        "max_model_len": st.just(48),
        "max_num_queued_reqs": st.sampled_from([3, 1000]),
        "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
        "enable_prefix_caching": st.booleans(),
        "eviction_policy": st.sampled_from(["lru", "lfu"]),
        "async_scheduling": st.booleans(),
        "pending_block_timeout_s": st.sampled_from([0.0, 0.5, 100.0]),
        "num_host_slots": st.sampled_from([0, 3, 24]),
        "preemption_mode": st.sampled_from(["auto", "swap", "recompute"]),
        "store_write_back": st.sampled_from(["never", "on_eviction", "on_second_use", "always"]),
    }
)


@dataclass
class Traffic:
    """Clients that come, leave and stop early at random, and what they saw."""

    engine: Engine
    clock: ManualClock
    rng: random.Random
    sent: dict[str, EngineRequest] = field(default_factory=dict)
    tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    ended: dict[tuple[str, int], FinishReason] = field(default_factory=dict)

    def operate(self) -> None:
        action = self.rng.choices(
            [self.send, self.cancel, self.finish, self.clear, self.step], [20, 4, 3, 1, 72]
        )[0]
        action()

    def send(self) -> None:
        request_id = f"r{len(self.sent)}"
        shared = prompt(self.rng.choice([0, 8, 16]), seed=self.rng.randint(0, 1))
        own = [self.rng.randrange(VOCAB_SIZE) for _ in range(self.rng.randint(1, 18))]
        num_choices = self.rng.choice([1, 1, 1, 3])
        has_beams = num_choices > 1 and self.rng.random() < 0.3
        self.sent[request_id] = request(
            request_id,
            [*shared, *own],
            max_tokens=self.rng.randint(1, 20),
            num_choices=num_choices,
            beam=BeamSearch() if has_beams else None,
            priority=self.rng.randint(0, 2),
            seed=self.rng.randint(0, 3),
            queue_timeout_s=self.rng.choice([None, None, 1.0]),
            needs_last_token=self.rng.random() < 0.1,
        )
        submit(self.engine, self.sent[request_id])

    def cancel(self) -> None:
        if self.sent:
            self.engine.inbox.put(Cancel(self.rng.choice(list(self.sent)), 0))

    def finish(self) -> None:
        if self.sent:
            self.engine.inbox.put(FinishChoice(self.rng.choice(list(self.sent)), 0, 0))

    def clear(self) -> None:
        self.engine.inbox.put(ClearCache())

    def step(self) -> None:
        self.clock.advance(0.05)
        output = self.engine.step()
        self.engine.check()
        if output is not None:
            self.read(output)

    def read(self, output: StepOutput) -> None:
        stats, limits = output.stats, self.engine.config
        assert stats.num_rows <= limits.max_num_seqs
        num_tokens = stats.num_prefill_tokens + stats.num_decode_tokens
        assert num_tokens <= limits.max_num_batched_tokens
        for entry in output.entries:
            key = entry.request_id, entry.choice
            assert key not in self.ended, "a choice went on after its end"
            so_far = self.tokens.setdefault(key, [])
            if entry.token_ids:
                assert entry.index == len(so_far)
                so_far.extend(entry.token_ids)
            if entry.finish_reason is FinishReason.REFUSED:
                for choice in range(self.sent[entry.request_id].num_choices):
                    self.ended[entry.request_id, choice] = entry.finish_reason
            elif entry.finish_reason is not None:
                self.ended[key] = entry.finish_reason

    def settle(self) -> None:
        num_steps = 0
        while self.engine.has_work or self.engine.inbox.wait(0):
            self.step()
            num_steps += 1
            assert num_steps < 100_000, "the engine does not come to rest"
        for request_id, one in self.sent.items():
            for choice in range(one.num_choices):
                assert (request_id, choice) in self.ended
        assert self.engine.stats.num_running == self.engine.stats.num_waiting == 0
        assert self.engine.stats.num_free_blocks == self.engine.config.num_blocks


def traffic(overrides: dict[str, object], seed: int, num_operations: int) -> Traffic:
    clock = ManualClock()
    clients = Traffic(engine(clock=clock, **overrides), clock, random.Random(seed))
    try:
        for _ in range(num_operations):
            clients.operate()
        clients.settle()
    finally:
        clients.engine.close()
    return clients


@settings(max_examples=40, deadline=None, derandomize=True)
@given(overrides=CONFIGS, seed=st.integers(0, 2**32))
def test_random_traffic_keeps_every_invariant_and_everyone_ends(overrides, seed):
    traffic(overrides, seed, num_operations=250)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(overrides=CONFIGS, seed=st.integers(0, 2**32))
def test_a_hundred_thousand_operations_keep_every_invariant(overrides, seed):
    traffic(overrides, seed, num_operations=1000)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(overrides=CONFIGS, seed=st.integers(0, 2**32))
def test_random_traffic_gives_each_client_the_tokens_it_gets_alone(overrides, seed):
    clients = traffic(overrides, seed, num_operations=120)
    for (request_id, choice), ids in clients.tokens.items():
        usual = alone(clients.sent[request_id], max_model_len=48)[request_id, choice]
        assert ids == usual[: len(ids)], (request_id, choice)
