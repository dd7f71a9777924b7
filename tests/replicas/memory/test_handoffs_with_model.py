"""Pools with a real model, a real server and engines in processes of their own: equal tokens."""

import queue
import time
from dataclasses import replace

import pytest

from cluster.handoff.block_stream_server import BlockStreamBinding
from cluster.handoff.handoff_ways import HandoffWays
from cluster.replica.replica_store import ReplicaStore
from kvstore.block_hash import root_hash
from kvstore.config import StoreConfig
from replicas.config import EngineConfig, SchedulerConfig
from replicas.engine_client import ProcessEngine
from replicas.handoff import HandoffIn, HandoffNews, HandoffOut
from replicas.request import EngineRequest, SamplingParams, TokenEntry
from replicas.store_mover import StoreAccess
from tests.kvstore.redis_servers import RedisServer
from tests.replicas.tiny_models import random_prompts, save_tiny

pytestmark = [pytest.mark.redis, pytest.mark.slow]
BLOCK_SIZE = 8
LENGTHS = (3, 8, 37, 64, 100)
OUTPUT_TOKENS = 12


class Replica:
    """An engine core, and what it says."""

    def __init__(self, config: EngineConfig, store: StoreAccess | None = None) -> None:
        self._outputs: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.engine = ProcessEngine(
            config, on_output=self._outputs.put, on_exit=self._outputs.put, store=store
        )

    def entries_of(self, request: EngineRequest, is_last) -> list[TokenEntry]:
        """What is said of one request until an entry is the last that the test wants."""
        self.engine.submit(request)
        found: list[TokenEntry] = []
        deadline = time.monotonic() + 60.0
        while not any(is_last(entry) for entry in found):
            output = self._outputs.get(timeout=max(0.1, deadline - time.monotonic()))
            assert not isinstance(output, str), output
            found += [e for e in output.entries if e.request_id == request.request_id]
        return found


def tokens_of(entries: list[TokenEntry]) -> list[int]:
    return [token for entry in entries for token in entry.token_ids]


def news_of(entries: list[TokenEntry]) -> HandoffNews:
    (news,) = [entry.handoff for entry in entries if entry.handoff is not None]
    return news


def outcome_of(entries: list[TokenEntry]) -> str:
    return news_of(entries).outcome


def engine_config(model, **settings) -> EngineConfig:
    return EngineConfig(
        model=model.folder,
        scheduler=SchedulerConfig(
            block_size=BLOCK_SIZE,
            max_num_seqs=16,
            max_num_batched_tokens=32,
            max_model_len=256,
            store_write_back="never",
        ),
        dtype="float32",
        kernels="reference",
        num_threads=1,
        num_blocks_override=128,
        **{"deterministic": True, "swap_space_bytes": 4 * 1024 * 1024, **settings},
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    tiny = save_tiny(tmp_path_factory.mktemp("tiny"), "llama")
    tiny.prepared.save()
    return tiny.prepared


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    started = RedisServer(tmp_path_factory.mktemp("valkey")).start()
    yield started
    started.stop()


@pytest.fixture(scope="module", params=["store", "shm", "grpc", "auto"])
def transport(request):
    return request.param


@pytest.fixture(scope="module")
def access(server, transport):
    binding = BlockStreamBinding("127.0.0.1", "127.0.0.1", "a secret of the cluster")
    config = StoreConfig(redis_url=server.url)
    return [ReplicaStore(config, ways=HandoffWays(transport, binding)).access for _ in range(3)]


@pytest.fixture(scope="module")
def pools(model, access):
    replicas = [Replica(engine_config(model), each) for each in access[:2]]
    yield replicas
    for replica in replicas:
        replica.engine.close()


@pytest.fixture(scope="module")
def alone(model):
    replica = Replica(engine_config(model, swap_space_bytes=0))
    yield replica
    replica.engine.close()


def requests_of(transport: str, *, greedy: bool) -> list[EngineRequest]:
    return [
        EngineRequest(
            f"{transport}-{'greedy' if greedy else 'seeded'}-{index}",
            tuple(ids),
            SamplingParams(
                max_tokens=OUTPUT_TOKENS,
                temperature=0.0 if greedy else 0.9,
                seed=index,
                ignore_eos=True,
            ),
            root=root_hash(fingerprint="tiny", block_size=BLOCK_SIZE),
        )
        for index, ids in enumerate(random_prompts(list(LENGTHS)))
    ]


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "seeded"])
def test_output_through_pools_is_that_of_one_replica(pools, alone, transport, greedy):
    prefill, decode = pools
    for one in requests_of(transport, greedy=greedy):
        usual = tokens_of(alone.entries_of(one, lambda entry: entry.finish_reason is not None))
        computed = prefill.entries_of(
            replace(one, handoff=HandoffOut(1, 10.0)), lambda entry: entry.handoff is not None
        )
        assert outcome_of(computed) == "published"
        first = tokens_of(computed)
        generated = decode.entries_of(
            replace(one, emitted_token_ids=tuple(first), handoff=HandoffIn(1, 10.0)),
            lambda entry: entry.finish_reason is not None,
        )
        news = news_of(generated)
        assert news.outcome == "adopted"
        if transport != "auto" and news.num_bytes:
            assert news.transport == transport
        assert [*first, *tokens_of(generated)] == usual


def test_replicas_of_other_arithmetic_share_no_tables(pools, model, access, transport):
    one = replace(requests_of(transport, greedy=True)[2], request_id="other")
    computed = pools[0].entries_of(
        replace(one, handoff=HandoffOut(1, 10.0)), lambda entry: entry.handoff is not None
    )
    other = Replica(engine_config(model, deterministic=False), access[2])
    generated = other.entries_of(
        replace(one, emitted_token_ids=tuple(tokens_of(computed)), handoff=HandoffIn(1, 10.0)),
        lambda entry: entry.finish_reason is not None,
    )
    assert outcome_of(generated) == "incompatible"
    other.engine.close()
