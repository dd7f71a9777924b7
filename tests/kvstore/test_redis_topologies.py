"""The ways in which people run Redis: a unix socket, TLS, Sentinel, Cluster."""

import socket
import subprocess
import time

import pytest

from kvstore.config import StoreConfig
from kvstore.redis_block_store import open_lanes, open_redis_block_store
from kvstore.redis_store import server_info
from kvstore.store_admin import StoreAdmin
from tests.kvstore.blocks import LAYOUT, all_same, chain, names, wanted
from tests.kvstore.redis_servers import RedisServer, debian_redis, free_port

pytestmark = pytest.mark.redis

FETCH_TIMEOUT_S = 1.0


@pytest.fixture
def open_store():
    opened = []

    def open_one(url, **settings):
        config = StoreConfig(redis_url=url, store_fetch_timeout_s=FETCH_TIMEOUT_S, **settings)
        opened.append(open_redis_block_store(config, layout=LAYOUT))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def serves(store, *, first_token=0):
    """Whether the store takes blocks, finds, pins and gives them."""
    blocks = chain(40, first_token=first_token)
    return (
        store.put_many(blocks).is_complete
        and store.contains_prefix(names(blocks), lease="mine") == 40
        and all_same(store.get_many(wanted(blocks)).blocks, blocks)
    )


def until(holds, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.1)


@pytest.fixture
def start(tmp_path):
    servers = []

    def start_one(*options, binary=None, port=0):
        folder = tmp_path / str(len(servers))
        folder.mkdir()
        servers.append(RedisServer(folder, *options, binary=binary, port=port).start())
        return servers[-1]

    yield start_one
    for server in servers:
        server.stop()


def test_a_unix_socket_with_a_user_and_a_database(start, open_store, tmp_path):
    path = tmp_path / "valkey.sock"
    start("--unixsocket", str(path), "--requirepass", "pw")
    assert serves(open_store(f"unix://default:pw@{path}?db=3"))
    assert server_info(f"unix://:pw@{path}", timeout_s=5.0).name == "Valkey"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Paths of a CA, a server's and a client's certificate and key, and of another CA."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for authority in ("ca", "other"):
        openssl(
            *("req", "-x509", *key, "-days", "2", "-subj", f"/CN={authority}"),
            *("-keyout", f"{authority}.key", "-out", f"{authority}.crt"),
        )
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for holder in ("server", "client"):
        openssl(
            *("req", *key, "-subj", f"/CN={holder}"),
            *("-keyout", f"{holder}.key", "-out", f"{holder}.csr"),
        )
        openssl(
            *("x509", "-req", "-days", "2", "-in", f"{holder}.csr", "-out", f"{holder}.crt"),
            *("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"),
        )
    return {path.name: str(path) for path in folder.iterdir()}


@pytest.fixture
def tls_server(start, certificates):
    port = free_port()
    server = start(
        *("--tls-port", str(port), "--tls-ca-cert-file", certificates["ca.crt"]),
        *("--tls-cert-file", certificates["server.crt"]),
        *("--tls-key-file", certificates["server.key"], "--tls-auth-clients", "yes"),
        binary=debian_redis(),
    )
    server.ask("ACL", "SETUSER", "kv", "on", ">pw", "~pagoda:*", "+@all")
    server.tls_url = f"rediss://kv:pw@127.0.0.1:{port}"
    return server


def test_tls_with_a_client_certificate_and_a_user(tls_server, certificates, open_store):
    store = open_store(
        tls_server.tls_url,
        redis_ca_file=certificates["ca.crt"],
        redis_cert_file=certificates["client.crt"],
        redis_key_file=certificates["client.key"],
    )
    assert serves(store)


@pytest.mark.parametrize(
    "files",
    [("ca.crt", "", ""), ("other.crt", "client.crt", "client.key")],
    ids=["without_our_certificate", "of_an_unknown_authority"],
)
def test_tls_is_refused(tls_server, certificates, open_store, files, caplog):
    ca_file, cert_file, key_file = (certificates.get(name, "") for name in files)
    store = open_store(
        tls_server.tls_url,
        redis_ca_file=ca_file,
        redis_cert_file=cert_file,
        redis_key_file=key_file,
    )
    assert store.get_many(wanted(chain(1))).ended_by == "connection"
    assert "store is away" in caplog.text
    assert "pw" not in caplog.text


@pytest.fixture
def sentinel(start, tmp_path):
    """A master, its replica, and one sentinel that needs nobody else's vote."""
    master, replica = start("--requirepass", "pw", "--masterauth", "pw"), None
    replica = start(
        *("--replicaof", f"127.0.0.1 {master.port}"),
        *("--requirepass", "pw", "--masterauth", "pw"),
    )
    settings = tmp_path / "sentinel.conf"
    settings.write_text(
        f"sentinel monitor mymaster 127.0.0.1 {master.port} 1\n"
        "sentinel auth-pass mymaster pw\n"
        "sentinel down-after-milliseconds mymaster 500\n"
        "sentinel failover-timeout mymaster 2000\n"
    )
    watcher = start(str(settings), "--sentinel", binary=debian_redis())
    until(lambda: b"slave0:" in _info(master))
    until(lambda: b"slaves=1" in watcher.ask("INFO", "sentinel"))
    return master, replica, watcher


def _info(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=5.0) as link:
        link.sendall(b"AUTH pw\r\nINFO replication\r\n")
        time.sleep(0.05)
        return link.recv(65536)


@pytest.mark.slow
def test_a_sentinel_failover_is_misses_and_then_the_new_master_serves(sentinel, open_store, caplog):
    master, _, watcher = sentinel
    url = f"redis+sentinel://:pw@127.0.0.1:{watcher.port}/mymaster"
    assert server_info(url, timeout_s=5.0).name == "Valkey"
    store = open_store(url, store_timeout_s=1.0)
    assert serves(store)
    master.kill()
    longest_s, deadline = 0.0, time.monotonic() + 60.0
    while True:
        started_at = time.monotonic()
        has_served = serves(store, first_token=1_000_000)
        longest_s = max(longest_s, time.monotonic() - started_at)
        if has_served:
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # One round is a put, a lookup and a fetch, each with its own time-out.
    assert longest_s < 1.0 + 2 * FETCH_TIMEOUT_S + 1.0
    assert store.stats().errors["connection"] > 0
    assert "store is back" in caplog.text
    # What the old master acknowledged is here, or it is a miss; it is never wrong.
    old = chain(40)
    found = store.get_many(wanted(old)).blocks
    assert all_same(found, old[: len(found)])


@pytest.fixture
def cluster(start):
    """Three masters, a third of the slots each."""
    options = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
    nodes = [start(*options) for _ in range(3)]
    borders = (0, 5461, 10923, 16384)
    for node, first, end in zip(nodes, borders, borders[1:], strict=False):
        assert node.ask("CLUSTER", "ADDSLOTSRANGE", str(first), str(end - 1)) == b"OK"
    for other in nodes[1:]:
        nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", str(other.port))
    for node in nodes:
        until(lambda node=node: b"cluster_state:ok" in node.ask("CLUSTER", "INFO"))
        until(lambda node=node: b"cluster_slots_ok:16384" in node.ask("CLUSTER", "INFO"))
    return nodes


@pytest.mark.slow
def test_a_cluster_spreads_blocks_and_keeps_each_with_its_pins(cluster, open_store):
    store = open_store(f"redis+cluster://127.0.0.1:{cluster[0].port},127.0.0.1:1")
    assert serves(store)
    sizes = [node.ask("DBSIZE") for node in cluster]
    assert sum(sizes) == 80
    assert min(sizes) > 0
    assert len(list(store.scan())) == 40
    assert store.stats().errors == {}


@pytest.mark.slow
def test_a_slot_that_moves_is_followed(cluster, open_store):
    store = open_store(f"redis+cluster://127.0.0.1:{cluster[1].port}")
    assert serves(store)
    taker = cluster[2].ask("CLUSTER", "MYID")
    cluster[0].ask("FLUSHALL")
    for slot in range(0, 5461, 13):
        for node in cluster:
            assert node.ask("CLUSTER", "SETSLOT", str(slot), "NODE", taker) == b"OK"
    assert serves(store)
    assert store.stats().errors == {}


@pytest.mark.slow
def test_a_node_that_died_takes_its_blocks_and_no_others(cluster, open_store):
    store = open_store(f"redis+cluster://127.0.0.1:{cluster[0].port}")
    assert serves(store)
    cluster[2].kill()
    blocks = chain(40)
    found = store.get_many(wanted(blocks))
    assert found.ended_by != "complete"
    assert all_same(found.blocks, blocks[: len(found.blocks)])


@pytest.mark.slow
def test_admin_commands_reach_every_node(cluster, open_store):
    url = f"redis+cluster://127.0.0.1:{cluster[0].port}"
    assert serves(open_store(url))
    lanes = open_lanes(StoreConfig(redis_url=url))
    admin = StoreAdmin(lanes, timeout_s=5.0)
    assert admin.show()[0].num_blocks == 40
    assert admin.verify().num_whole == 40
    assert admin.empty() == 40
    assert [node.ask("DBSIZE") for node in cluster] == [0, 0, 0]
    lanes.close()


def test_an_unknown_service_is_said(start, open_store, tmp_path, caplog):
    settings = tmp_path / "sentinel.conf"
    settings.write_text("")
    watcher = start(str(settings), "--sentinel", binary=debian_redis())
    store = open_store(f"redis+sentinel://127.0.0.1:{watcher.port}/nobody")
    assert store.get_many(wanted(chain(1))).blocks == ()
    assert "no sentinel knows a live master of nobody" in caplog.text
