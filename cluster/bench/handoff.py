"""Times hand-offs between two engine cores, each transport in turn: what the client waits for it.

The exposed time is from a request's first token, which the prefill core samples, to its second,
which the decode core does, less a plain decode step. All chunks but the last have moved by then.
"""

import argparse
import queue
import secrets
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cluster.handoff.block_stream_server import BlockStreamBinding
from cluster.handoff.block_stream_transport import BlockStreamTransport
from cluster.launch.embedded_store import EmbeddedStore
from kvstore.block_hash import root_hash
from kvstore.block_store import BlockStore, StoredBlock, WantedBlock
from kvstore.block_transport import BlockTransport, Delivery, Source, TransportName
from kvstore.config import StoreConfig
from kvstore.redis_block_store import open_redis_block_store, open_redis_handoff_tables
from kvstore.shm_transport import ShmTransport
from kvstore.store_transport import StoreTransport
from replicas.config import EngineConfig, SchedulerConfig
from replicas.engine_client import ProcessEngine
from replicas.handoff import HandoffIn, HandoffNews, HandoffOut
from replicas.memory.host_buffer import HostBuffer
from replicas.models.prepare import prepare_model
from replicas.models.prepared_model import PreparedModel
from replicas.request import EngineRequest, SamplingParams, TokenEntry
from replicas.step_output import StepOutput
from replicas.store_mover import HandoffAccess, StoreAccess

TRANSPORTS: tuple[TransportName, ...] = ("store", "shm", "grpc")
NUM_DECODED = 8
DEADLINE_S = 60.0


@dataclass(slots=True)
class Selection:
    """The transport that is used now."""

    name: TransportName = "store"


class SelectedTransport:
    """Another transport, which offers only while it is the selected one."""

    def __init__(self, transport: BlockTransport, selection: Selection) -> None:
        self._transport = transport
        self._selection = selection
        self.name = transport.name

    @property
    def address(self) -> str:
        """See BlockTransport."""
        return self._transport.address if self._selection.name == self.name else ""

    def offer(self, key: bytes, blocks: Sequence[StoredBlock], *, ttl_s: float) -> bool:
        """See BlockTransport."""
        return self._transport.offer(key, blocks, ttl_s=ttl_s)

    def withdraw(self, key: bytes) -> None:
        """See BlockTransport."""
        self._transport.withdraw(key)

    def fetch(
        self,
        source: Source,
        wanted: Sequence[WantedBlock],
        targets: Sequence[memoryview],
        *,
        timeout_s: float,
    ) -> Delivery:
        """See BlockTransport."""
        return self._transport.fetch(source, wanted, targets, timeout_s=timeout_s)

    def close(self) -> None:
        """See BlockTransport."""
        self._transport.close()


@dataclass(frozen=True, slots=True)
class Heard:
    """One entry and when it came, in seconds of this process's clock."""

    entry: TokenEntry
    at: float


class Core:
    """An engine core, and what it says about one request at a time."""

    def __init__(self, config: EngineConfig, store: StoreAccess) -> None:
        self._heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self.engine = ProcessEngine(
            config, on_output=self._on_output, on_exit=self._on_exit, store=store
        )

    def next(self) -> Heard:
        """What is said next; raises TimeoutError if nothing is."""
        try:
            return self._heard.get(timeout=DEADLINE_S)
        except queue.Empty as error:
            raise TimeoutError("an engine core is silent") from error

    def _on_output(self, output: StepOutput) -> None:
        now = time.perf_counter()
        for entry in output.entries:
            self._heard.put(Heard(entry, now))

    def _on_exit(self, reason: str) -> None:
        raise RuntimeError(reason)


@dataclass(frozen=True, slots=True)
class Round:
    """One hand-off: seconds, and how many bytes of K and V travelled after the prompt's end.

    exposed_s: between the first two tokens, less a plain decode step of the same request. publish_s
    and adopt_s are parts of it.
    """

    exposed_s: float
    step_s: float
    publish_s: float
    adopt_s: float
    num_bytes: int


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of this benchmark."""
    parser.add_argument("--rounds", type=int, default=20, help="hand-offs by each transport")
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--chunk-tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1, help="of each engine core")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--cache-dir", default=".cache/models", help="folder of prepared models")


def main(options: argparse.Namespace) -> int:
    """Measure and print a table."""
    model = prepare_model(options.model, cache_dir=Path(options.cache_dir))
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedStore(memory_bytes=1 << 30, folder=Path(folder))
        server.start()
        try:
            rounds = measure(model, options, server.url)
        finally:
            server.close()
    print(table(rounds, options))
    return 0


def measure(
    model: PreparedModel, options: argparse.Namespace, redis_url: str
) -> dict[TransportName, list[Round]]:
    """Hand-offs by every transport in turn, after one each that does not count."""
    selection = Selection()
    config = _engine_config(model, options)
    access = _store_access(StoreConfig(redis_url=redis_url), selection)
    prefill, decode = Core(config, access), Core(config, access)
    rounds: dict[TransportName, list[Round]] = {name: [] for name in TRANSPORTS}
    try:
        for number in range(options.rounds + 1):
            for name in TRANSPORTS:
                selection.name = name
                request = _request(model, f"{name}-{number}", options.prompt_tokens)
                measured = _hand_over(prefill, decode, request)
                if number:
                    rounds[name].append(measured)
    finally:
        prefill.engine.close()
        decode.engine.close()
    return rounds


def table(rounds: dict[TransportName, list[Round]], options: argparse.Namespace) -> str:
    """Medians in milliseconds; the exposed time in decode steps too."""
    lines = [
        f"{options.prompt_tokens} prompt tokens in chunks of {options.chunk_tokens}, "
        f"{options.threads} thread(s) a core, {options.rounds} rounds, transports in turn",
        "transport  exposed p50 ms   p90   steps p50  publish ms  adopt ms   MB/s",
    ]
    for name, measured in rounds.items():
        exposed = np.array([one.exposed_s for one in measured]) * 1000
        steps = statistics.median(one.exposed_s / one.step_s for one in measured)
        publish = statistics.median(one.publish_s for one in measured) * 1000
        adopt = statistics.median(one.adopt_s for one in measured)
        speed = statistics.median(one.num_bytes / one.adopt_s for one in measured) / 1e6
        lines.append(
            f"{name:9}  {np.percentile(exposed, 50):14.1f} {np.percentile(exposed, 90):6.1f} "
            f"{steps:10.2f} {publish:11.1f} {adopt * 1000:9.1f} {speed:6.0f}"
        )
    return "\n".join(lines)


def _hand_over(prefill: Core, decode: Core, request: EngineRequest) -> Round:
    decode.engine.prefetch(replace(request, handoff=HandoffIn(1, DEADLINE_S)))
    prefill.engine.submit(replace(request, handoff=HandoffOut(1, DEADLINE_S)))
    first, published = None, None
    while published is None:
        heard = prefill.next()
        if heard.entry.token_ids:
            first = heard
        published = heard.entry.handoff
    assert first is not None
    assert published.outcome == "published", published
    decode.engine.submit(
        replace(
            request,
            attempt=1,
            emitted_token_ids=first.entry.token_ids,
            handoff=HandoffIn(1, DEADLINE_S),
        )
    )
    token_times, adopted = _decoded(decode)
    prefill.engine.finish_choice(request.request_id, 0, 0)
    while prefill.next().entry.finish_reason is None:
        pass
    step_s = statistics.median(np.diff(token_times))
    return Round(
        exposed_s=token_times[0] - first.at - step_s,
        step_s=step_s,
        publish_s=published.seconds,
        adopt_s=adopted.seconds,
        num_bytes=adopted.num_bytes,
    )


def _decoded(decode: Core) -> tuple[list[float], HandoffNews]:
    """When each token came, and how the adoption went."""
    times: list[float] = []
    adopted: HandoffNews | None = None
    while True:
        heard = decode.next()
        adopted = heard.entry.handoff or adopted
        if heard.entry.token_ids:
            times.append(heard.at)
        if heard.entry.finish_reason is not None:
            break
    assert adopted is not None
    assert adopted.outcome == "adopted", adopted
    return times, adopted


def _request(model: PreparedModel, request_id: str, num_tokens: int) -> EngineRequest:
    # Other prompts every time: a prefix that is known already would not travel.
    ids = np.random.default_rng([*request_id.encode()]).integers(100, model.vocab_size, num_tokens)
    return EngineRequest(
        request_id,
        tuple(ids.tolist()),
        SamplingParams(max_tokens=NUM_DECODED + 1, temperature=0.0, ignore_eos=True),
        root=root_hash(fingerprint=model.fingerprint, block_size=SchedulerConfig().block_size),
    )


def _engine_config(model: PreparedModel, options: argparse.Namespace) -> EngineConfig:
    return EngineConfig(
        model=model.folder,
        scheduler=SchedulerConfig(
            max_num_seqs=32,
            max_num_batched_tokens=options.chunk_tokens,
            max_model_len=min(model.max_model_len, options.prompt_tokens + 64),
            store_write_back="never",
        ),
        num_threads=options.threads,
        kv_cache_memory_bytes=256 * 1024 * 1024,
    )


def _store_access(config: StoreConfig, selection: Selection) -> StoreAccess:
    binding = BlockStreamBinding("127.0.0.1", "127.0.0.1", secrets.token_hex(16))

    def open_handoffs(store: BlockStore) -> HandoffAccess:
        tables = open_redis_handoff_tables(config, layout=store.layout)

        def open_transports(buffer: HostBuffer) -> list[BlockTransport]:
            buffer.populate()
            memory = buffer.slots.reshape(-1).data
            made: list[BlockTransport] = [
                StoreTransport(store, tables),
                ShmTransport(store.layout, fd=buffer.fd, memory=memory),
                BlockStreamTransport(store.layout, binding),
            ]
            return [SelectedTransport(each, selection) for each in made]

        return HandoffAccess(tables, open_transports)

    return StoreAccess(
        lambda layout: open_redis_block_store(config, layout=layout),
        config.store_fetch_timeout_s,
        open_handoffs,
    )
