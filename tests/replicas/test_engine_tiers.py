"""Swapping and the shared store with a real model: the same tokens, whatever happens."""

import os
import queue
import signal
import time

import pytest

from kvstore.block_hash import root_hash
from kvstore.config import StoreConfig
from kvstore.redis_block_store import open_lanes, open_redis_block_store
from kvstore.store_admin import StoreAdmin
from replicas.assembly import Outside, build_engine
from replicas.config import EngineConfig, SchedulerConfig
from replicas.engine_client import ProcessEngine
from replicas.engine_commands import Submit
from replicas.memory.host_buffer import HostBuffer
from replicas.request import EngineRequest, SamplingParams
from replicas.store_mover import StoreAccess
from tests.kvstore.redis_servers import RedisServer
from tests.replicas.engine_harness import run, tokens
from tests.replicas.tiny_models import random_prompts, save_tiny

pytestmark = pytest.mark.slow
BLOCK_SIZE = 8
NUM_REQUESTS = 32
DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    tiny = save_tiny(tmp_path_factory.mktemp("tiny"), "llama")
    tiny.prepared.save()
    return tiny.prepared


def config_of(model, *, num_blocks=1024, **scheduler) -> EngineConfig:
    values = {
        "block_size": BLOCK_SIZE,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 64,
        "max_model_len": 128,
        "max_preemptions": 100,
    }
    return EngineConfig(
        model=model.folder,
        scheduler=SchedulerConfig(**{**values, **scheduler}),
        dtype="float32",
        deterministic=True,
        num_threads=1,
        num_blocks_override=num_blocks,
        swap_space_bytes=8 << 20,
    )


def requests_of(*, greedy: bool, count: int = NUM_REQUESTS) -> list[EngineRequest]:
    lengths = [20 + (7 * index) % 24 for index in range(count)]
    return [
        EngineRequest(
            f"r{index}",
            tuple(ids),
            SamplingParams(
                max_tokens=20,
                temperature=0.0 if greedy else 0.9,
                top_p=1.0 if greedy else 0.95,
                seed=index,
                ignore_eos=True,
            ),
            root=root_hash(fingerprint="tiny", block_size=BLOCK_SIZE),
        )
        for index, ids in enumerate(random_prompts(lengths))
    ]


def served(config: EngineConfig, requests: list[EngineRequest]):
    """Their tokens, and the engine's last figures."""
    buffers: list[HostBuffer] = []

    def make_buffer(num_slots: int, slot_bytes: int) -> HostBuffer:
        buffers.append(HostBuffer.create(num_slots=num_slots, slot_bytes=slot_bytes))
        return buffers[-1]

    engine, _info = build_engine(config, outside=Outside(make_buffer))
    for request in requests:
        engine.inbox.put(Submit(request))
    found = tokens(run(engine))
    engine.close()
    for buffer in buffers:
        buffer.close()
    return found, engine.stats


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "seeded"])
def test_output_under_heavy_preemption_equals_output_without_it(model, greedy):
    requests = requests_of(greedy=greedy)
    usual, calm = served(config_of(model), requests)
    assert calm.preemptions_total == 0
    # Room for four requests of up to 64 tokens, and 32 are offered.
    for mode in ("swap", "recompute", "auto"):
        tight = config_of(model, num_blocks=32, preemption_mode=mode, watermark=0.0)
        found, stats = served(tight, requests)
        assert stats.preemptions_total > 5
        assert found == usual, mode
        if mode == "swap":
            assert stats.tiers.swaps_total > 0
            assert stats.discarded_tokens_total == 0


class Listener:
    """Collects a core's tokens and its newest figures."""

    def __init__(self) -> None:
        self.found: dict[str, list[int]] = {}
        self.ends: queue.Queue[str] = queue.Queue()
        self.exits: queue.Queue[str] = queue.Queue()
        self.stats = None

    def on_output(self, output) -> None:
        self.stats = output.stats
        for entry in output.entries:
            self.found.setdefault(entry.request_id, []).extend(entry.token_ids)
            if entry.finish_reason is not None:
                self.ends.put(entry.request_id)

    def await_ends(self, count: int) -> None:
        for _ in range(count):
            self.ends.get(timeout=DEADLINE_S)


@pytest.fixture
def server(tmp_path):
    server = RedisServer(tmp_path).start()
    yield server
    server.stop()


def start(model, server: RedisServer, **scheduler):
    settings = StoreConfig(redis_url=server.url)
    listener = Listener()
    access = StoreAccess(
        lambda layout: open_redis_block_store(settings, layout=layout), fetch_timeout_s=5.0
    )
    engine = ProcessEngine(
        config_of(model, store_write_back="always", **scheduler),
        on_output=listener.on_output,
        on_exit=listener.exits.put,
        store=access,
    )
    return engine, listener


def until(holds, timeout_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


@pytest.mark.redis
def test_a_second_core_serves_the_prefixes_of_one_that_was_killed_under_load(model, server):
    requests = requests_of(greedy=True, count=8)
    first, heard = start(model, server)
    for request in requests:
        first.submit(request)
    heard.await_ends(len(requests))
    until(lambda: heard.stats.tiers.stored_blocks_total >= 3 * len(requests))
    for request in requests_of(greedy=False, count=NUM_REQUESTS)[8:]:
        first.submit(request)
    time.sleep(0.1)
    os.kill(first.pid, signal.SIGKILL)
    heard.exits.get(timeout=DEADLINE_S)
    first.close()
    lanes = open_lanes(StoreConfig(redis_url=server.url))
    verified = StoreAdmin(lanes, timeout_s=10.0).verify()
    lanes.close()
    assert verified.bad == ()
    assert verified.num_whole >= 3 * len(requests)

    second, heard_again = start(model, server)
    for request in requests:
        second.submit(request)
    heard_again.await_ends(len(requests))
    until(lambda: heard_again.stats.tiers.store_hit_tokens_total > 0)
    stats = heard_again.stats
    second.close()
    for request in requests:
        assert heard_again.found[request.request_id] == heard.found[request.request_id]
    assert stats.tiers.store_hit_tokens_total >= 8 * 2 * BLOCK_SIZE
    assert stats.hit_tokens_total >= stats.tiers.store_hit_tokens_total
