"""With certificates, blocks go only to replicas that show one of the cluster's."""

from dataclasses import replace

import pytest

from cluster.handoff.block_stream_server import BlockStreamBinding
from cluster.handoff.block_stream_transport import BlockStreamTransport
from cluster.peer_tls import PEER_NAME, PeerTls
from kvstore.block_transport import Delivery, Source
from tests.cluster.certificates import Authority
from tests.kvstore.blocks import LAYOUT, chain, wanted

KEY = bytes(range(32))
SECRET = "a secret of the cluster"


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def issued(authority: Authority, *names: str) -> PeerTls:
    cert, key = authority.issue(*names)
    return PeerTls(str(authority.ca_file), str(cert), str(key))


def transport(tls: PeerTls | None) -> BlockStreamTransport:
    return BlockStreamTransport(
        LAYOUT, BlockStreamBinding("127.0.0.1", "127.0.0.1", SECRET, tls=tls)
    )


def fetched(sender: BlockStreamTransport, reader: BlockStreamTransport) -> Delivery:
    blocks = chain(3)
    sender.offer(KEY, blocks, ttl_s=10.0)
    targets = [memoryview(bytearray(LAYOUT.payload_bytes)) for _ in blocks]
    delivery = reader.fetch(Source(KEY, sender.address), wanted(blocks), targets, timeout_s=5.0)
    for each in (sender, reader):
        each.close()
    return delivery


def test_replicas_with_the_clusters_certificate_read_blocks(authority):
    tls = issued(authority, PEER_NAME)
    assert fetched(transport(tls), transport(tls)).num_whole == 3


def test_a_replica_without_a_certificate_reads_nothing(authority):
    sender = transport(issued(authority, PEER_NAME))
    assert fetched(sender, transport(None)) == Delivery(0, 0, "connection")


def test_a_certificate_of_another_authority_opens_nothing(authority, tmp_path):
    (tmp_path / "other").mkdir()
    stranger = issued(Authority(tmp_path / "other", "other authority"), PEER_NAME)
    offered = replace(stranger, ca_file=str(authority.ca_file))
    sender = transport(issued(authority, PEER_NAME))
    assert fetched(sender, transport(offered)) == Delivery(0, 0, "connection")


def test_a_server_under_another_name_is_not_believed(authority):
    sender = transport(issued(authority, "elsewhere.example"))
    reader = transport(issued(authority, PEER_NAME))
    assert fetched(sender, reader) == Delivery(0, 0, "connection")
