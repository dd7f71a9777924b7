"""Mutual TLS on the token stream: peers with a certificate of the cluster, and nobody else."""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.config import PeersConfig
from cluster.peer_tls import PEER_NAME, PeerTls, PeerTlsUnusable
from cluster.streams.token_stream_client import StreamTarget, TokenStreamClient
from tests.cluster.certificates import Authority
from tests.cluster.replica_harness import SECRET, until
from tests.cluster.stream_harness import Ear, a_side


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls(authority):
    cert, key = authority.issue(PEER_NAME)
    return PeerTls(str(authority.ca_file), str(cert), str(key))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    other = Authority(tmp_path_factory.mktemp("strangers"), "other authority")
    cert, key = other.issue(PEER_NAME)
    return PeerTls(str(other.ca_file), str(cert), str(key))


@asynccontextmanager
async def attached(port, ear, tls, gateway_id="g"):
    target = StreamTarget(f"127.0.0.1:{port}", gateway_id, SECRET, resume_timeout_s=0.5, tls=tls)
    client = TokenStreamClient(target, listener=ear, clock=time.monotonic)
    client.start()
    try:
        yield client
    finally:
        await client.close()


async def test_peers_with_the_clusters_certificate_talk(tls):
    ear = Ear()
    async with a_side(tls=tls) as side, attached(side.port, ear, tls):
        await until(lambda: ear.events == ["open"])
        side.say(1, 2)
        await until(lambda: ear.token_ids() == [1, 2])


@pytest.mark.parametrize("who", ["nobody", "stranger", "other_name"])
async def test_a_gateway_without_the_clusters_certificate_hears_nothing(
    who, tls, stranger, authority
):
    ear = Ear()
    offered = {"nobody": None, "stranger": stranger, "other_name": tls}[who]
    of_server = tls
    if who == "other_name":
        cert, key = authority.issue("somebody.else")
        of_server = replace(tls, cert_file=str(cert), key_file=str(key))
    async with a_side(tls=of_server) as side, attached(side.port, ear, offered):
        # Several tries' time: the first retry follows after 20 ms.
        await asyncio.sleep(0.4)
        assert "open" not in ear.events
        assert not side.server.gateways


async def test_renewed_files_are_in_force_without_a_restart(tls, stranger, tmp_path):
    files = PeerTls(*(str(tmp_path / name) for name in ("ca.crt", "tls.crt", "tls.key")))
    copy_files(tls, files)
    async with a_side(tls=files) as side:
        old, new = Ear(), Ear()
        async with attached(side.port, old, tls):
            await until(lambda: old.events == ["open"])
            copy_files(stranger, files)
            async with attached(side.port, new, stranger, gateway_id="other"):
                await until(lambda: new.events == ["open"])
            # Who was let in stays in.
            side.say(1)
            await until(lambda: old.token_ids() == [1])


def copy_files(source, target):
    for name in ("ca_file", "cert_file", "key_file"):
        Path(getattr(target, name)).write_bytes(Path(getattr(source, name)).read_bytes())


def test_a_missing_file_is_named(tls):
    lost = replace(tls, key_file="/nowhere/tls.key")
    with pytest.raises(PeerTlsUnusable, match="/nowhere/tls.key"):
        lost.server_credentials()


def test_the_three_files_come_together_or_not_at_all():
    assert PeerTls.of(PeersConfig()) is None
    assert PeerTls.of(PeersConfig("a", "b", "c")) == PeerTls("a", "b", "c")
    with pytest.raises(ValueError, match="all three or none"):
        PeersConfig(peer_ca_file="a")
