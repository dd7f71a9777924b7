"""Scrapes of a whole cluster under load: everything moves, nothing falls, all comes to rest."""

import asyncio
from collections import defaultdict

import pytest

from cluster.metrics.catalogue import CATALOGUE, METRICS
from cluster.metrics.gateway_metrics import GatewayMetrics
from cluster.metrics.gateway_reporter import GatewayReporter
from cluster.metrics.pair_catalogue import PAIR_METRICS
from cluster.metrics.speculation_catalogue import SPECULATION_METRICS
from cluster.metrics.tier_catalogue import TIER_METRICS
from tests.cluster.metrics.scraped import is_total, samples_of
from tests.cluster.metrics.simulated_cluster import CAREFUL, announced, simulated_cluster
from tests.cluster.replica_harness import a_gateway, until
from tests.cluster.stream_harness import Wire

# A whole cluster under load for several seconds.
pytestmark = pytest.mark.slow

# What does not depend on traffic.
CONSTANT = {"vllm:cache_config_info", "pagoda:startup_phase_seconds", "pagoda:replica_state"}
# What looks after the connections stays; one loop carries the whole cluster here.
OF_THE_LOOP = {"pagoda:gateway_tasks", "pagoda:replica_tasks"}
# These replicas have no memory below the device's blocks; test_tier_metrics.py looks at that.
# There is one pool of mixed replicas here; tests/cluster/handoff/test_pair_dispatcher.py has two.
OF_POOLS = {metric.name for metric in PAIR_METRICS}
BELOW = {metric.name for metric in TIER_METRICS}
# Nobody guesses here; test_speculation_metrics.py looks at that.
GUESSES = {metric.name for metric in SPECULATION_METRICS}


@pytest.fixture(autouse=True)
def quick_reports(monkeypatch):
    monkeypatch.setattr("cluster.replica.replica_service.METRICS_INTERVAL_S", 0.1)


async def traffic(gateway, number):
    """Prompts that share a beginning, outputs that do not fit side by side."""
    body = {"max_tokens": 40, "temperature": 0, "n": 1 + number % 2, "ignore_eos": True}
    answer = await gateway.complete("the same beginning " + "x" * (number % 5), **body)
    assert answer.status_code in (200, 429, 500, 503)


async def keep_asking(gateway, number, done):
    while not done.is_set():
        await asyncio.sleep(0.01)
        await traffic(gateway, number)


async def one_left(gateway):
    call = asyncio.create_task(gateway.complete("leaving", max_tokens=70, ignore_eos=True))
    await asyncio.sleep(0.05)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


class Watcher:
    """Scrapes the gateways in turn and keeps the lowest and highest value of every series."""

    def __init__(self, gateways):
        self._gateways = gateways
        self.last = {}
        self.lowest = defaultdict(lambda: float("inf"))
        self.highest = defaultdict(float)
        self.fallen = []
        self.kinds = {}

    async def look(self):
        for gateway in self._gateways:
            # Longer than a report takes through a replica to the other gateway.
            await asyncio.sleep(0.3)
            found, self.kinds = samples_of((await gateway.scrape()).text)
            for key, value in found.items():
                if is_total(key, self.kinds) and value < self.last.get(key, 0.0):
                    self.fallen.append((key, self.last[key], value))
                self.lowest[key] = min(self.lowest[key], value)
                self.highest[key] = max(self.highest[key], value)
            gone = [k for k in self.last if k not in found and is_total(k, self.kinds | {k: ""})]
            assert not gone, gone
            self.last = found

    def moved(self, name):
        keys = [key for key in self.highest if key[0] in (name, f"{name}_count", f"{name}_total")]
        return any(self.highest[key] > self.lowest[key] for key in keys)


async def disturb(cluster):
    """All that does not happen by itself: a stalled step, a dead core, clients that leave."""
    first, second = cluster.replicas.values()
    await asyncio.gather(*(one_left(gateway) for gateway in cluster.gateways))
    second.cores[-1].stall_s = 2.0
    await asyncio.sleep(0.2)
    await asyncio.to_thread(first.cores[-1].crash)


async def test_under_load_every_name_moves_no_total_falls_and_gauges_come_to_rest():
    async with simulated_cluster() as cluster:
        watcher = Watcher(cluster.gateways)
        await watcher.look()
        done = asyncio.Event()
        load = [
            asyncio.create_task(keep_asking(gateway, number, done))
            for number in range(12)
            for gateway in cluster.gateways
        ]
        await watcher.look()
        disturbing = asyncio.create_task(disturb(cluster))
        # A busy machine may take more than three looks to see the stall.
        for look in range(12):
            await watcher.look()
            if look >= 2 and watcher.moved("pagoda:replica_stuck_seconds"):
                break
        done.set()
        await asyncio.gather(disturbing, *load)
        await asyncio.gather(*(traffic(gateway, 0) for gateway in cluster.gateways))
        for replica in cluster.replicas.values():
            await until(lambda r=replica: r.service.heartbeat().is_accepting, timeout_s=5)
        await asyncio.sleep(0.3)
        await watcher.look()

        assert watcher.fallen == []
        by_events = {
            "pagoda:token_stream_reconnects",
            "pagoda:token_stream_losses",
            "pagoda:failovers",
            "pagoda:prefix_index_inexact_replicas",
            "pagoda:prefix_index_repairs",
            "pagoda:prefix_index_dropped_blocks",
        }
        still = [
            metric.name
            for metric in CATALOGUE
            if metric.name not in CONSTANT | BELOW | GUESSES | OF_POOLS | by_events
            and not watcher.moved(metric.name)
        ]
        assert still == []
        restless = {
            key: value
            for key, value in watcher.last.items()
            if watcher.kinds[key] == "gauge" and key[0] not in OF_THE_LOOP and value != rest_of(key)
        }
        assert restless == {}


def rest_of(key):
    """The value of a gauge when there is nothing to do."""
    name, labels = key[0], dict(key[1])
    if name == "vllm:cache_config_info":
        return 1.0
    if name == "pagoda:startup_phase_seconds":
        return 0.25
    if name == "pagoda:replica_state":
        return float(labels["state"] == "active")
    if name == "pagoda:kv_blocks" and labels["kind"] in ("empty", "cached"):
        return pytest.approx(12, abs=12)
    if name == "pagoda:prefix_index_blocks":
        return pytest.approx(24, abs=24)
    return 0.0


async def test_every_series_of_the_cluster_is_on_any_gateway():
    async with simulated_cluster() as cluster:
        await asyncio.gather(*(traffic(gateway, 1) for gateway in cluster.gateways))
        await asyncio.sleep(0.5)
        pages = [samples_of((await gateway.scrape()).text)[0] for gateway in cluster.gateways]
        for page in pages:
            labels = [dict(key[1]) for key in page]
            assert {one["gateway"] for one in labels if "gateway" in one} == {
                "gateway0",
                "gateway1",
            }
            tokens = {
                one["replica"]: one["pool"]
                for key, one in zip(page, labels, strict=True)
                if key[0] == "vllm:generation_tokens_total"
            }
            assert tokens == {"replica0": "mixed", "replica1": "mixed"}
        assert set(pages[0]) == set(pages[1])


async def test_the_parts_of_a_time_to_first_token_add_up_to_it():
    async with simulated_cluster(num_replicas=1, num_gateways=1) as cluster:
        for number in range(3):
            await traffic(cluster.gateways[0], number)
        await asyncio.sleep(0.3)
        page, _ = samples_of((await cluster.gateways[0].scrape()).text)
        sums = {key[0]: value for key, value in page.items() if key[0].endswith("_sum")}
        parts = [v for k, v in page.items() if k[0] == "pagoda:ttft_part_seconds_sum"]
        assert len(parts) == 4
        assert sum(parts) == pytest.approx(sums["vllm:time_to_first_token_seconds_sum"], rel=0.01)


async def test_tokens_are_counted_alike_on_both_sides():
    async with simulated_cluster(num_replicas=1, num_gateways=1) as cluster:
        answer = await cluster.gateways[0].complete("Say it", max_tokens=9, ignore_eos=True, n=2)
        assert answer.json()["usage"]["completion_tokens"] == 18
        await asyncio.sleep(0.5)
        page, _ = samples_of((await cluster.gateways[0].scrape()).text)
        by_name = {key[0]: value for key, value in page.items()}
        assert by_name["vllm:generation_tokens_total"] == 18
        assert by_name["vllm:request_generation_tokens_sum"] == 18
        assert by_name["vllm:request_params_n_sum"] == 2
        assert by_name["vllm:request_max_num_generation_tokens_sum"] == 9
        assert by_name["vllm:prompt_tokens_total"] == by_name["vllm:request_prompt_tokens_sum"]


async def test_a_core_that_is_replaced_takes_no_total_back():
    async with simulated_cluster(num_replicas=1, num_gateways=1) as cluster:
        gateway, replica = cluster.gateways[0], cluster.replicas["replica0"]
        await gateway.complete("Say", max_tokens=7, ignore_eos=True)
        await asyncio.to_thread(replica.cores[-1].crash)
        await until(lambda: len(replica.cores) == 2 and replica.service.heartbeat().is_accepting)
        await asyncio.sleep(0.2)
        await gateway.complete("Say", max_tokens=5, ignore_eos=True)
        await asyncio.sleep(0.5)
        page, _ = samples_of((await gateway.scrape()).text)
        by_name = {key[0]: value for key, value in page.items()}
        assert by_name["vllm:generation_tokens_total"] == 12
        assert by_name["pagoda:engine_core_restarts_total"] == 1


async def test_breaks_of_a_stream_are_counted_by_how_they_ended():
    async with simulated_cluster(num_replicas=1, num_gateways=1) as cluster:
        replica = cluster.replicas["replica0"]
        wire = Wire(int(replica.service.announcement.address.rpartition(":")[2]))
        router, directory, _ = a_gateway(no_call, gateway_id="wired", config=CAREFUL)
        metrics = GatewayMetrics(gateway_id="wired")
        reporter = GatewayReporter(metrics, router=router, directory=directory)
        async with wire.open() as port:
            directory.on_replica_set(announced(cluster.replicas, {"replica0": port}))
            await until(lambda: directory.health().num_replicas == 1)
            wire.cut()
            await until(lambda: directory.stream_breaks.num_resumed == 1, timeout_s=5)
            await replica.service.close()
            await until(lambda: directory.stream_breaks.num_lost == 1, timeout_s=5)
            await directory.close()
        reporter.report()
        body, _ = await metrics.scrape("")
        by_name = {key[0]: value for key, value in samples_of(body.decode())[0].items()}
        assert by_name["pagoda:token_stream_reconnects_total"] == 1
        assert by_name["pagoda:token_stream_losses_total"] == 1


def no_call(request, route):
    raise AssertionError("nothing is asked of it")


async def test_the_format_is_the_one_that_the_scraper_asks_for():
    async with simulated_cluster(num_replicas=1, num_gateways=1) as cluster:
        plain = await cluster.gateways[0].scrape()
        assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
        openmetrics = await cluster.gateways[0].scrape(
            accept="application/openmetrics-text;version=1.0.0"
        )
        assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
        assert openmetrics.text.endswith("# EOF\n")


async def test_the_key_guards_the_metrics():
    async with simulated_cluster(1, 1, api_keys=("secret",)) as cluster:
        http = cluster.gateways[0].http
        assert (await http.get("/metrics")).status_code == 401
        bearer = {"Authorization": "Bearer secret"}
        assert (await http.get("/metrics", headers=bearer)).status_code == 200


def test_names_are_defined_once():
    assert len(METRICS) == len(CATALOGUE)
