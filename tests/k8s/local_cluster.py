"""A Ray cluster of two nodes on loopback, set up as the manifests set pods up.

Ray's parameters, its environment, Serve's config and all secrets are those of the overlay cpu-demo;
only what pods do not share but processes of one machine do differs: addresses, ports, folders.
"""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import yaml

from cluster.kubernetes.model_volume import place_model
from cluster.ray_settings import haproxy_environment
from tests.cluster.certificates import Authority
from tests.k8s.manifests import ROOT, groups, only, rendered, serve_config
from tests.k8s.secret_keys import made_secrets
from tests.kvstore.redis_servers import RedisServer, debian_redis

HEAD, WORKER, SECOND_WORKER = "127.0.0.2", "127.0.0.3", "127.0.0.4"
BIN = Path(sys.executable).parent
START_TIMEOUT_S = 240.0
# Half a minute of manners towards load balancers would be the tests' too; HAProxy needs some of it.
FASTER = {"RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "10"}


def wait_for(is_so: Callable[[], bool], *, what: str, timeout_s: float = START_TIMEOUT_S) -> None:
    """Ask again and again; raises AssertionError with `what` in it."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"{what} not within {timeout_s:.0f} s"
        time.sleep(0.5)


@dataclass
class LocalCluster:
    """What runs, and where: everything lies in `folder`, which is removed at the end."""

    folder: Path
    free_port: Callable[[], int]
    secrets: dict[str, dict[str, str]] = field(default_factory=made_secrets)
    ports: dict[str, int] = field(default_factory=dict)
    config: dict = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['http']}"

    @property
    def dashboard(self) -> str:
        return f"http://{HEAD}:{self.ports['dashboard']}"

    @property
    def api_key(self) -> str:
        return self.secrets["pagoda-api-keys"]["api-keys"].split(",")[0]

    @property
    def metrics_key(self) -> str:
        return self.secrets["pagoda-api-keys"]["metrics-key"]

    def deploy(self, config: dict) -> None:
        """`serve deploy` of a config; returns when Serve has taken it."""
        path = self.folder / "serve-config.yaml"
        path.write_text(yaml.safe_dump(config))
        self._run("serve", "deploy", "-a", self.dashboard, str(path))
        self.config = config

    def statuses(self) -> list[str]:
        """The application's status and those of its deployments."""
        answer = httpx.get(
            f"{self.dashboard}/api/serve/applications/",
            headers={"Authorization": f"Bearer {self.secrets['pagoda-ray-token']['auth_token']}"},
            timeout=20.0,
        )
        app = answer.raise_for_status().json()["applications"]["pagoda"]
        assert app["status"] not in ("DEPLOY_FAILED", "UNHEALTHY"), app["message"] + self.said()
        return [app["status"], *(d["status"] for d in app["deployments"].values())]

    def is_up(self) -> bool:
        return set(self.statuses()) == {"RUNNING", "HEALTHY"}

    def wait_until_up(self) -> None:
        """Raises AssertionError with what the replicas said last."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.is_up():
            assert time.monotonic() < deadline, f"{self.statuses()}{self.said()}"
            time.sleep(0.5)

    def said(self) -> str:
        """The ends of what replicas and gateways logged."""
        logs = sorted((self.folder / "ray" / "session_latest" / "logs").glob("worker-*.err"))
        return "".join(f"\n{log.name}:\n{log.read_text()[-1500:]}" for log in logs)

    def children_of(self, address: str) -> list[psutil.Process]:
        """Every process of the node with this address, of this cluster and no other."""
        raylet = self._raylet(address)
        return raylet.children(recursive=True) if raylet else []

    def node_id(self, address: str) -> str:
        """Ray's name of the node with this address."""
        options = dict(
            word.split("=", 1) for word in self._raylet(address).cmdline() if "=" in word
        )
        return options["--node_id"]

    def _raylet(self, address: str) -> psutil.Process | None:
        wanted = f"--node_ip_address={address}"
        for process in psutil.process_iter(["name", "cmdline"]):
            words = process.info["cmdline"] or ()
            is_raylet = process.info["name"] == "raylet" and wanted in words
            if is_raylet and any(str(self.folder) in word for word in words):
                return process
        return None

    def environment(self, node: str) -> dict[str, str]:
        """What a pod's container has, with this machine's paths in place of the pod's."""
        objects = rendered("cpu-demo")
        data = dict(only(objects, "ConfigMap", "pagoda-ray-environment")["data"])
        private = self.folder / node
        private.mkdir(mode=0o700, exist_ok=True)
        haproxy = haproxy_environment(private, free_port=self.free_port)
        tls = {
            "RAY_USE_TLS": "1",
            "RAY_TLS_SERVER_CERT": str(self.folder / f"{HEAD}.crt"),
            "RAY_TLS_SERVER_KEY": str(self.folder / f"{HEAD}.key"),
            "RAY_TLS_CA_CERT": str(self.folder / "test-authority.crt"),
        }
        given = {
            "RAY_AUTH_TOKEN": self.secrets["pagoda-ray-token"]["auth_token"],
            "PAGODA_API_KEY": self.secrets["pagoda-api-keys"]["api-keys"],
            "REDIS_URL": self.store_url("valkey-blocks"),
            "RAY_REDIS_CA_CERT": str(self.folder / "pagoda-valkey-tls" / "ca.crt"),
            "RAY_SERVE_WORKER_PROXY_HTTP_PORT": str(self.ports["worker-http"] + (node == "second")),
            "PYTHONPATH": str(ROOT),
        }
        kept = {k: os.environ[k] for k in ("PATH", "HOME", "LANG") if k in os.environ}
        return {**kept, **data, **FASTER, **haproxy, **tls, **given}

    def store_url(self, name: str) -> str:
        place = f"localhost:{self.ports[name]}"
        if name == "valkey-gcs":
            return f"rediss://{place}"
        return self.secrets["pagoda-valkey-blocks"]["url"].replace("valkey-blocks:6379", place)

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            env=self.environment("client"),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout


@contextlib.contextmanager
def local_cluster(free_port: Callable[[], int]) -> Iterator[LocalCluster]:
    """Stores, Ray's two nodes and nothing on them yet; all of it gone afterwards."""
    names = ("http", "worker-http", "dashboard", "gcs", "valkey-blocks", "valkey-gcs")
    with (
        tempfile.TemporaryDirectory(prefix="pk-", ignore_cleanup_errors=True) as name,
        contextlib.ExitStack() as ends,
    ):
        cluster = LocalCluster(Path(name), free_port)
        ends.callback(_end_stragglers, cluster.folder)
        cluster.ports.update((name, free_port()) for name in names)
        _write_secrets(cluster)
        for store in ("valkey-blocks", "valkey-gcs"):
            ends.enter_context(_store(cluster, store))
        for node, address in (("head", HEAD), ("first", WORKER)):
            ends.enter_context(ray_node(cluster, node, address))
        yield cluster


def _write_secrets(cluster: LocalCluster) -> None:
    for secret in ("pagoda-peer-tls", "pagoda-valkey-tls"):
        folder = cluster.folder / secret
        folder.mkdir()
        for file, text in cluster.secrets[secret].items():
            (folder / file).write_text(text)
    Authority(cluster.folder).issue(HEAD, WORKER, SECOND_WORKER, "127.0.0.1", "localhost")


@contextlib.contextmanager
def _store(cluster: LocalCluster, name: str) -> Iterator[None]:
    folder = cluster.folder / name
    folder.mkdir()
    (folder / "users.acl").write_text(cluster.secrets[f"pagoda-{name}"]["users.acl"])
    conf = only(rendered("cpu-demo"), "ConfigMap", name)["data"]["valkey.conf"]
    for path, there in (
        ("/etc/valkey/tls", cluster.folder / "pagoda-valkey-tls"),
        ("/etc/valkey/acl", folder),
        ("/data", folder),
    ):
        conf = conf.replace(path, str(there))
    conf = conf.replace("port 6379", f"port {cluster.ports[name]}")
    (folder / "valkey.conf").write_text(conf)
    # The port in the clear stays shut, as in the pod.
    options = (str(folder / "valkey.conf"), "--port", "0")
    server = RedisServer(folder, *options, binary=debian_redis(), port=cluster.ports[name])
    server.start()
    try:
        yield
    finally:
        server.stop()


@contextlib.contextmanager
def ray_node(cluster: LocalCluster, node: str, address: str) -> Iterator[dict[str, str]]:
    """One node, the head or a worker, and the environment that its container would have."""
    group = "head" if node == "head" else "mixed"
    parameters = dict(groups(rendered("cpu-demo"))[group]["rayStartParams"])
    for name in [n for n in parameters if n.endswith("-port")]:
        del parameters[name]
    parameters |= {
        "node-ip-address": address,
        "dashboard-agent-listen-port": str(cluster.free_port()),
    }
    environment = cluster.environment(node)
    if node == "head":
        parameters |= {
            "port": str(cluster.ports["gcs"]),
            "dashboard-host": address,
            "dashboard-port": str(cluster.ports["dashboard"]),
            "ray-client-server-port": str(cluster.free_port()),
            "temp-dir": str(cluster.folder / "ray"),
            "redis-username": "ray",
            "redis-password": cluster.secrets["pagoda-valkey-gcs"]["password"],
        }
        environment["RAY_REDIS_ADDRESS"] = cluster.store_url("valkey-gcs")
    else:
        parameters["address"] = f"{HEAD}:{cluster.ports['gcs']}"
    # Low, where no other Ray of this machine and no ephemeral port lies.
    least = 20_000 + 750 * (os.getpid() % 8) + 250 * ["head", "first", "second"].index(node)
    parameters |= {"min-worker-port": str(least), "max-worker-port": str(least + 249)}
    options = [f"--{name}={value}" for name, value in parameters.items()]
    command = [str(BIN / "ray"), "start", *(["--head"] if node == "head" else []), "--block"]
    with (cluster.folder / f"{node}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *options], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_for(lambda: cluster._raylet(address) is not None, what=f"Ray's {node}")
        if node == "head":
            wait_for(lambda: _answers(f"{cluster.dashboard}/api/version"), what="the dashboard")
        yield environment
    finally:
        _end(process)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0).status_code in (200, 401)
    except httpx.HTTPError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End this one command and its own family, at once: nothing in it is worth a long goodbye."""
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    for child in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    process.kill()
    process.wait(10)
    psutil.wait_procs(family, timeout=10)


def _end_stragglers(folder: Path) -> None:
    """A HAProxy that was just being started outlives its starter; its folder tells whose it is."""
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in word for word in process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def localised(cluster: LocalCluster) -> dict:
    """Serve's config of the overlay, with this machine's paths and addresses."""
    config = serve_config(rendered("cpu-demo"))
    # Gateways take Serve's host too, and a HAProxy reaches another node's by the node's address.
    config["http_options"] = {"host": "0.0.0.0", "port": cluster.ports["http"]}
    [app] = config["applications"]
    args = app["args"]
    link = cluster.folder / "model"
    place_model("demo", cache_dir=ROOT / ".cache" / "models", link=link)
    args["engine"]["model"] = str(link)
    args["engine"]["kv_cache_memory_bytes"] = "128MiB"
    args["replica"]["token_stream_host"] = "127.0.0.1"
    text = yaml.safe_dump(args)
    text = re.sub("/etc/pagoda/peers", str(cluster.folder / "pagoda-peer-tls"), text)
    text = re.sub("/etc/pagoda/valkey", str(cluster.folder / "pagoda-valkey-tls"), text)
    app["args"] = yaml.safe_load(text)
    return config
