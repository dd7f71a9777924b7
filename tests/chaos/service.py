"""What faults are done to: three Ray nodes with gateways and replicas, and a store of its own."""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
import ray
from ray import serve
from ray._raylet import AuthenticationTokenLoader
from ray.cluster_utils import Cluster

from cluster.app import DEPLOYMENTS, compose
from cluster.cluster_secret import cluster_secret
from cluster.config import ClusterConfig, GatewayConfig, ReplicaConfig
from cluster.dispatch.replica_directory import ReplicaDirectory
from cluster.dispatch.serve_router_adapter import ServeCaller, follow_replicas
from cluster.pools.pool_calls import PoolCaller, PoolSets
from cluster.pools.pool_config import HandoffConfig, PoolConfig
from cluster.ray_settings import haproxy_environment, ray_environment
from kvstore.config import StoreConfig
from replicas.config import EngineConfig, SchedulerConfig
from router.config import RouterConfig
from tests.chaos.network import FarHost, NoNamespaces
from tests.chaos.ray_processes import HeadProcess, WorkerNode
from tests.chaos.simulated_core import CORE_MODULE, StartSimulatedCore
from tests.cluster.replica_harness import a_gateway, until
from tests.cluster.tiny_model import prepare_tiny_model
from tests.kvstore.redis_servers import RedisServer

APP = "pagoda"
ROOT = Path(__file__).parents[2]
NUM_GATEWAYS = 2
# A machine with two cores that others use too: what is meant to happen at once may take this long.
PATIENCE_S = 120.0
# A look goes through all processes of the service, and must not take the time of what it looks at.
_LOOK_INTERVAL_S = 0.1
# Of all gateways, and all replicas.
_MUST_BE_NONE = (("pagoda:open_calls", ""), ("pagoda:host_slots", 'kind="pinned"'))
_TASKS = ("pagoda:gateway_tasks{", "pagoda:replica_tasks{")
# Connections that wait for their next request have some.
_TASK_SLACK = 12
_OBJECT_STORE_BYTES = 80 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Layout:
    """How many replicas of each role."""

    num_mixed: int = 0
    num_prefill: int = 0
    num_decode: int = 0

    @property
    def num_near(self) -> int:
        """Those that fit on the node beside us; one more has to go to the far one."""
        return self.num_mixed + self.num_prefill + self.num_decode - 1


@dataclass
class Service:
    """A running service, and the handles by which it can be hurt.

    far: the host of one worker node that can be cut off; None where namespaces are not allowed,
    for the reason in `why_not_far`.
    """

    config: ClusterConfig
    cluster: Cluster
    store: RedisServer
    head: HeadProcess
    far: FarHost | None
    why_not_far: str = ""
    far_node: WorkerNode | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.config.gateway.port}"

    @property
    def num_replicas(self) -> int:
        return sum(pool.num_replicas for pool in self.config.pools())

    @property
    def gateways(self) -> list[psutil.Process]:
        return _named(f"ServeReplica:{APP}:gateway")

    @property
    def replicas(self) -> list[psutil.Process]:
        return [
            process
            for pool in self.config.pools()
            for process in _named(f"ServeReplica:{APP}:{DEPLOYMENTS[pool.role]}")
        ]

    def replicas_of(self, deployment: str) -> list[psutil.Process]:
        return _named(f"ServeReplica:{APP}:{deployment}")

    @property
    def cores(self) -> list[psutil.Process]:
        return _named(CORE_MODULE)

    def kept_for_requests(self) -> list[bytes]:
        """Keys in the store that must end with their request: hand-offs, and leases on blocks."""
        keys = (self.store.ask("KEYS", pattern) for pattern in ("pagoda:handoff:*", "*:pins"))
        return [key for found in keys for key in found]

    def renew_far_node(self) -> None:
        """A worker node beyond the cable, or beside us where there is none; instead of the last."""
        self.end_far_node()
        far = self.far
        self.far_node = WorkerNode(
            self.cluster.gcs_address,
            far.far_address if far is not None else "127.0.0.1",
            wrap=far.command() if far is not None else [],
            num_cpus=1,
        )

    def end_far_node(self) -> None:
        """If there is one."""
        if self.far_node is not None:
            self.far_node.kill()
            self.far_node = None


@contextmanager
def running_service(layout: Layout, free_port, folder: Path) -> Iterator[Service]:
    """Starts everything, and ends it."""
    with ExitStack() as ends:
        patch = ends.enter_context(pytest.MonkeyPatch.context())
        far, why_not = None, ""
        try:
            far = ends.enter_context(FarHost(os.getpid() % 10_000))
        except NoNamespaces as error:
            why_not = str(error)
        address = far.address if far is not None else "127.0.0.1"
        _set_environment(patch, folder, free_port=free_port)
        store = RedisServer(
            folder, "--bind", *sorted({address, "127.0.0.1"}), "--protected-mode", "no"
        )
        ends.callback(store.stop)
        store.start()
        config = _config(layout, folder, free_port(), f"redis://{address}:{store.port}/0")
        cluster = Cluster(
            initialize_head=True,
            connect=True,
            head_node_args={
                **_worker(address),
                "num_cpus": 0,
                "include_dashboard": False,
                "gcs_server_port": free_port(),
                "temp_dir": str(folder / "ray"),
            },
        )
        service = Service(config, cluster, store, HeadProcess(), far, why_not)
        ends.callback(_end, service)
        cluster.add_node(**_worker(address), num_cpus=layout.num_near)
        service.renew_far_node()
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": "127.0.0.1", "port": config.gateway.port},
        )
        serve.run(compose(config, start_engine=StartSimulatedCore()), name=APP)
        yield service


@asynccontextmanager
async def watched(service: Service) -> AsyncIterator[ReplicaDirectory]:
    """A gateway in this process that only listens to what the replicas report."""
    handles = {
        DEPLOYMENTS[pool.role]: serve.get_deployment_handle(DEPLOYMENTS[pool.role], APP)
        for pool in service.config.pools()
    }
    late: list[PoolSets] = []

    def call(request, route):
        callers = {name: ServeCaller(handle) for name, handle in handles.items()}
        return PoolCaller(late[0], callers)(request, route)

    _, directory, dispatcher = a_gateway(
        call, gateway_id="observer", secret=cluster_secret(os.environ), config=RouterConfig()
    )
    late.append(PoolSets(directory))
    for name, handle in handles.items():
        await follow_replicas(handle, late[0].pool(name))
    try:
        await until(
            lambda: directory.health().num_replicas == service.num_replicas, timeout_s=PATIENCE_S
        )
        yield directory
    finally:
        await dispatcher.close()
        await directory.close()


def is_whole(service: Service, directory: ReplicaDirectory) -> bool:
    """Whether every gateway and every replica is there."""
    # What is quickly known first.
    return (
        directory.health().num_replicas == len(directory.links) == service.num_replicas
        and len(service.gateways) == NUM_GATEWAYS
        and len(service.cores) == len(service.replicas) == service.num_replicas
    )


async def whole_again(service: Service, directory: ReplicaDirectory) -> None:
    """Wait until everybody is there again."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_whole(service, directory):  # noqa: ASYNC110 - of other processes
            await asyncio.sleep(_LOOK_INTERVAL_S)


async def recovered(
    service: Service, directory: ReplicaDirectory, tasks_before: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Wait until everybody is there again, and nothing is left of any request.

    tasks_before: of processes, which may not have got more. Returns what they have now.
    """
    ends_at = time.monotonic() + PATIENCE_S
    async with httpx.AsyncClient(base_url=service.url, timeout=PATIENCE_S) as client:
        while True:
            missing = await lacks(service, directory, client)
            if not missing:
                tasks = await num_tasks(client)
                missing = grown(tasks_before or {}, tasks)
            if not missing:
                return tasks
            assert time.monotonic() < ends_at, missing
            await asyncio.sleep(_LOOK_INTERVAL_S)


async def num_tasks(client: httpx.AsyncClient) -> dict[str, float]:
    """Tasks of each gateway's and replica's event loop, by all labels of the series."""
    lines = (await client.get("/metrics")).text.splitlines()
    found = [line for line in lines if line.startswith(_TASKS)]
    assert found, lines[:5]
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in found}


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Who has many more tasks than before: a round's requests are twice as many."""
    return [
        f"{name} had {before[name]:.0f} and has {after[name]:.0f}"
        for name in before.keys() & after.keys()
        if after[name] > before[name] + _TASK_SLACK
    ]


async def lacks(
    service: Service, directory: ReplicaDirectory, client: httpx.AsyncClient
) -> list[str]:
    """What keeps the service from being as if nothing had happened."""
    if not is_whole(service, directory):
        states = {name: str(link.status().state) for name, link in directory.links.items()}
        return [
            f"gateways={len(service.gateways)} replicas={len(service.replicas)} "
            f"cores={len(service.cores)} seen={states}"
        ]
    found = []
    if held := left_over(directory):
        found.append(f"replicas hold (open, running, waiting, blocks): {held}")
    if kept := service.kept_for_requests():
        found.append(f"store keeps {kept}")
    # Reports come once a second; no need to ask while it is plain without them.
    for name, label in () if found else _MUST_BE_NONE:
        if (number := await figure(client, name, label)) > 0:
            found.append(f"{name} {label} {number:.0f}")
    return found


async def figure(client: httpx.AsyncClient, name: str, label: str = "") -> float:
    """The sum over all gateways of a metric's series that bear a label."""
    answer = await client.get("/metrics")
    lines = [line for line in answer.text.splitlines() if line.startswith(name)]
    assert lines, answer.text[:500]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if label in line)


def left_over(directory: ReplicaDirectory) -> list[tuple[str, int, int, int, int]]:
    """Replicas that hold something: open requests, running, waiting, blocks in use."""
    found = []
    for replica_id, link in directory.links.items():
        report, stats = link.report, link.report.stats
        held = (
            report.num_open_requests,
            stats.num_running,
            stats.num_waiting,
            stats.num_blocks - stats.num_free_blocks,
        )
        if any(held):
            found.append((replica_id, *held))
    return found


def _config(layout: Layout, folder: Path, port: int, redis_url: str) -> ClusterConfig:
    model = prepare_tiny_model(folder / "model", fingerprint="f00d")
    return ClusterConfig(
        gateway=GatewayConfig(port=port, num_gateways=NUM_GATEWAYS),
        replica=ReplicaConfig(
            num_replicas=layout.num_mixed,
            num_cpus=1.0,
            gateway_grace_s=2.0,
            health_check_period_s=1.0,
            token_stream_host="0.0.0.0",
        ),
        engine=EngineConfig(
            model=model.folder, scheduler=SchedulerConfig(store_write_back="always")
        ),
        prefill=PoolConfig(num_replicas=layout.num_prefill),
        decode=PoolConfig(num_replicas=layout.num_decode),
        handoff=HandoffConfig(
            disaggregation="always", handoff_prefill_timeout_s=5.0, handoff_adopt_timeout_s=3.0
        ),
        router=RouterConfig(hung_after_s=3.0),
        store=StoreConfig(redis_url=redis_url, store_timeout_s=1.0, store_lease_ttl_s=5.0),
    )


def _worker(address: str) -> dict[str, object]:
    return {
        "object_store_memory": _OBJECT_STORE_BYTES,
        "node_ip_address": address,
    }


def _set_environment(
    patch: pytest.MonkeyPatch, folder: Path, *, free_port: Callable[[], int]
) -> None:
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    haproxy = folder / "haproxy"
    haproxy.mkdir(mode=0o700)
    environment = {
        **ray_environment(),
        **haproxy_environment(haproxy, free_port=free_port),
        "RAY_AUTH_TOKEN_PATH": str(token),
        # Where Ray notes the head's address: not among the machine's own notes. On a machine that
        # never had a Ray the usual folder is not there.
        "RAY_TMPDIR": str(folder),
        # A head that was killed comes back with what it knew.
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": str(folder / "gcs"),
        "RAY_gcs_rpc_server_reconnect_timeout_s": "300",
        "PYTHONPATH": str(ROOT),
    }
    for variable, value in environment.items():
        patch.setenv(variable, value)
    AuthenticationTokenLoader.instance().reset_cache()


def _end(service: Service) -> None:
    serve.shutdown()
    ray.shutdown()
    service.end_far_node()
    service.cluster.shutdown()
    service.head.end()


def _named(part: str) -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # or a zombie, which is one of those
            if part in " ".join(process.cmdline()[:3]):
                found.append(process)
    return found
