"""What k8s/make_secrets.py makes: Secrets that Kubernetes takes, certificates, users that work."""

import base64
import datetime
import subprocess
import sys

import kubernetes_validate
import pytest
import yaml
from cryptography import x509

from kvstore.errors import StoreUnavailable
from kvstore.redis_store import TlsFiles, server_info
from tests.k8s.manifests import K8S, only, rendered
from tests.k8s.secret_keys import made_secrets
from tests.kvstore.redis_servers import RedisServer, debian_redis


def printed(*arguments):
    script = str(K8S / "make_secrets.py")
    done = subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    return list(yaml.safe_load_all(done.stdout))


def test_every_secret_is_one_that_kubernetes_takes():
    found = [item for item in printed("--api-key", "of-a-client") if item]
    assert {item["metadata"]["name"] for item in found} == set(made_secrets())
    for item in found:
        kubernetes_validate.validate(item, "1.35", strict=True)
        assert item["metadata"]["namespace"] == "pagoda"
    keys = only(found, "Secret", "pagoda-api-keys")["data"]
    all_keys = base64.b64decode(keys["api-keys"]).decode().split(",")
    assert all_keys[0] == "of-a-client"
    assert base64.b64decode(keys["metrics-key"]).decode() in all_keys


def test_one_can_be_made_anew_under_another_name():
    [item] = [i for i in printed("--only", "pagoda-peer-tls", "--suffix", "2") if i]
    assert item["metadata"]["name"] == "pagoda-peer-tls-2"


def test_no_two_runs_make_the_same_secret():
    one, other = made_secrets(), made_secrets()
    assert one["pagoda-ray-token"] != other["pagoda-ray-token"]
    assert one["pagoda-valkey-gcs"]["password"] != other["pagoda-valkey-gcs"]["password"]


def test_certificates_name_the_services_and_last_a_year():
    data = made_secrets()["pagoda-valkey-tls"]
    leaf = x509.load_pem_x509_certificate(data["tls.crt"].encode())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    services = {o["metadata"]["name"] for o in rendered("gpu") if o["kind"] == "Service"}
    for host in ("valkey-blocks", "valkey-gcs"):
        assert host in services
        assert host in names.get_values_for_type(x509.DNSName)
        assert f"{host}.pagoda.svc.cluster.local" in names.get_values_for_type(x509.DNSName)
    left = leaf.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert 360 < left.days <= 365
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(data["ca.crt"].encode()))


@pytest.fixture
def valkey(tmp_path):
    """A server with the TLS and the ACL file of one of our stores, as its ConfigMap sets it up."""
    secrets = made_secrets()

    def start(name):
        (tmp_path / "users.acl").write_text(secrets[f"pagoda-{name}"]["users.acl"])
        for file, text in secrets["pagoda-valkey-tls"].items():
            (tmp_path / file).write_text(text)
        conf = only(rendered("cpu-demo"), "ConfigMap", name)["data"]["valkey.conf"]
        for folder in ("/etc/valkey/tls", "/etc/valkey/acl", "/data"):
            conf = conf.replace(folder, str(tmp_path))
        options = (str(tmp_path / "valkey.conf"), "--port", "0")
        server = RedisServer(tmp_path, *options, binary=debian_redis())
        conf = conf.replace("tls-port 6379", f"tls-port {server.port}")
        (tmp_path / "valkey.conf").write_text(conf)
        started.append(server.start())
        return server, secrets[f"pagoda-{name}"], tmp_path / "ca.crt"

    started = []
    yield start
    for server in started:
        server.stop()


def ask(server, ca_file, user, password, *words):
    import redis

    client = redis.Redis(
        host="localhost",
        port=server.port,
        username=user,
        password=password,
        ssl=True,
        ssl_ca_certs=str(ca_file),
    )
    with client:
        return client.execute_command(*words)


@pytest.mark.redis
def test_the_block_store_lets_our_user_do_its_work_and_no_more(valkey):
    import redis

    server, secret, ca_file = valkey("valkey-blocks")
    url = secret["url"].replace("valkey-blocks:6379", f"localhost:{server.port}")
    info = server_info(url, timeout_s=5.0, tls=TlsFiles(ca_file=str(ca_file)))
    assert info.max_memory_policy == "allkeys-lru"
    password = url.split(":")[2].split("@")[0]
    assert ask(server, ca_file, "pagoda", password, "SET", "pagoda:a", "b")
    for words in (
        ("SET", "other", "b"),
        ("FLUSHALL",),
        ("CONFIG", "SET", "maxmemory", "0"),
        ("ACL", "LIST"),
        ("SHUTDOWN",),
        ("KEYS", "*"),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            ask(server, ca_file, "pagoda", password, *words)


@pytest.mark.redis
def test_nobody_enters_without_a_name_and_a_password(valkey):
    server, secret, ca_file = valkey("valkey-blocks")
    tls = TlsFiles(ca_file=str(ca_file))
    for login in ("", "pagoda:wrong@", "default:@"):
        with pytest.raises(StoreUnavailable):
            server_info(f"rediss://{login}localhost:{server.port}/0", timeout_s=5.0, tls=tls)
    with pytest.raises(StoreUnavailable):
        server_info(
            secret["url"].replace("valkey-blocks:6379", f"localhost:{server.port}"), timeout_s=5.0
        )


@pytest.mark.redis
def test_an_exporter_sees_figures_and_no_keys(valkey):
    import redis

    server, secret, ca_file = valkey("valkey-gcs")
    password = secret["exporter-password"]
    assert ask(server, ca_file, "exporter", password, "INFO")
    for words in (("GET", "a"), ("SET", "a", "b"), ("CONFIG", "SET", "maxmemory", "0")):
        with pytest.raises(redis.exceptions.NoPermissionError):
            ask(server, ca_file, "exporter", password, *words)


@pytest.mark.redis
def test_rays_user_may_keep_what_ray_keeps(valkey):
    server, secret, ca_file = valkey("valkey-gcs")
    for words in (
        ("HSET", "RAYns@NODE", "k", "v"),
        ("HGETALL", "RAYns@NODE"),
        ("HINCRBY", "c", "f", "1"),
    ):
        assert ask(server, ca_file, "ray", secret["password"], *words)
