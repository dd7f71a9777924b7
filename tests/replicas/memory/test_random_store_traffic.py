"""Random traffic over a store that answers late, in any order, or with nothing: same tokens."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.engine_commands import Inbox
from replicas.memory.block_mover import (
    FetchDone,
    FetchJob,
    LookedUp,
    LookUpJob,
    MoverAnswer,
    MoverJob,
    StoreDone,
    StoreJob,
)
from replicas.memory.host_buffer import HostBuffer
from tests.replicas.engine_harness import ManualClock, alone, engine
from tests.replicas.memory.stores import simulated_layout
from tests.replicas.test_engine_invariants import Traffic

NUM_SLOTS = 24
CONFIGS = st.fixed_dictionaries(
    {
        "num_blocks": st.sampled_from([12, 20]),
        "max_num_seqs": st.integers(2, 6),
        "max_num_batched_tokens": st.sampled_from([11, 32]),
        "max_model_len": st.just(48),
        "async_scheduling": st.booleans(),
        "preemption_mode": st.sampled_from(["auto", "swap", "recompute"]),
        "store_write_back": st.sampled_from(["never", "on_eviction", "on_second_use", "always"]),
    }
)


class FickleMover:
    """A store in a dict, whose answers come when the dice say so, and are not always good ones."""

    has_store = True

    def __init__(self, rng: random.Random, host: HostBuffer) -> None:
        self._rng = rng
        self._host = host
        self._jobs: list[MoverJob] = []
        self._stored: dict[bytes, tuple[tuple[int, ...], bytes]] = {}
        self.inbox: Inbox | None = None
        self.num_fetched = 0

    def take(self, job: MoverJob) -> None:
        self._jobs.append(job)

    def answer_some(self) -> None:
        while self._jobs and self._rng.random() < 0.6:
            job = self._jobs.pop(self._rng.randrange(len(self._jobs)))
            assert self.inbox is not None
            self.inbox.put(self._do(job))

    def _do(self, job: MoverJob) -> MoverAnswer:
        works = self._rng.random() < 0.8
        match job:
            case StoreJob(job_id, blocks):
                for block in blocks if works else ():
                    # Only now: the slot must still hold what it held when the job came.
                    content = bytes(self._host.slot(block.slot))
                    known = self._stored.setdefault(block.name, (block.token_ids, content))
                    assert known == (block.token_ids, content), "a slot changed under a job"
                return StoreDone(job_id, len(blocks) if works else 0)
            case LookUpJob(job_id, names):
                is_here = [name in self._stored for name in names]
                return LookedUp(job_id, (*is_here, False).index(False) if works else 0)
            case FetchJob(job_id, blocks):
                num_wanted = self._rng.randint(0, len(blocks))
                for index, block in enumerate(blocks):
                    target = self._host.slot(block.slot)
                    if index < num_wanted:
                        target[:] = self._stored[block.name][1]
                    else:
                        target[:] = self._rng.randbytes(len(target))
                self.num_fetched += num_wanted
                return FetchDone(job_id, num_wanted, 0.01)


class StoreTraffic(Traffic):
    """As Traffic, with a mover that answers between steps."""

    mover: FickleMover

    def step(self) -> None:
        self.mover.answer_some()
        super().step()


def traffic(overrides: dict[str, object], seed: int, num_operations: int) -> StoreTraffic:
    clock, rng = ManualClock(), random.Random(seed)
    host = HostBuffer.create(num_slots=NUM_SLOTS, slot_bytes=simulated_layout().payload_bytes)
    mover = FickleMover(rng, host)
    target = engine(
        clock=clock,
        mover=mover,
        host=host,
        num_host_slots=NUM_SLOTS,
        fetch_timeout_s=0.3,
        **overrides,
    )
    mover.inbox = target.inbox
    clients = StoreTraffic(target, clock, rng)
    clients.mover = mover
    try:
        for _ in range(num_operations):
            clients.operate()
        clients.settle()
    finally:
        target.close()
        host.close()
    return clients


@settings(max_examples=8, deadline=None, derandomize=True)
@given(overrides=CONFIGS, seed=st.integers(0, 2**32))
def test_random_traffic_over_a_fickle_store_gives_each_client_the_tokens_it_gets_alone(
    overrides, seed
):
    _right_tokens(traffic(overrides, seed, num_operations=120))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(overrides=CONFIGS, seed=st.integers(0, 2**32))
def test_much_random_traffic_over_a_fickle_store_gives_the_right_tokens(overrides, seed):
    _right_tokens(traffic(overrides, seed, num_operations=600))


def test_the_fickle_store_is_of_use():
    overrides = {"num_blocks": 12, "max_model_len": 48, "store_write_back": "always"}
    clients = traffic(overrides, 3, num_operations=600)
    assert clients.mover.num_fetched > 0
    assert clients.engine.stats.tiers.store_hit_tokens_total > 0


def _right_tokens(clients: StoreTraffic) -> None:
    for (request_id, choice), ids in clients.tokens.items():
        usual = alone(clients.sent[request_id], max_model_len=48)[request_id, choice]
        assert ids == usual[: len(ids)], (request_id, choice)
