"""Serves the blocks of hand-offs to decode replicas, straight from a prefill replica's host memory.

In threads of its own and not on the replica's event loop: that one carries token streams, which a
chunk of some megabytes would hold up.
"""

import hmac
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc

from cluster.peer_tls import PeerTls
from cluster.streams.stream_codec import SECRET_METADATA_KEY
from cluster.wire import block_stream_pb2 as wire
from kvstore.block_hash import HASH_BYTES
from kvstore.offered_blocks import OfferedBlock, OfferedBlocks

log = logging.getLogger(__name__)

SERVICE = "pagoda.block_stream.v1.BlockStream"
METHOD = f"/{SERVICE}/Fetch"
# Of 24 MB between two threads of one busy machine, MB/s: 950 in chunks of 1 MiB, 770 of 512 KiB,
# 380 of 2 MiB.
CHUNK_BYTES = 1024 * 1024
MAX_MESSAGE_BYTES = 2 * CHUNK_BYTES
MAX_NAMES = 1 << 16
NUM_THREADS = 4
STOP_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class BlockStreamBinding:
    """Where a replica's blocks can be read and who may. port 0 takes any free one.

    host: to listen on. advertise_host: where others find it. secret: the cluster's. tls: without it
    blocks travel in clear, which suits one host.
    """

    host: str
    advertise_host: str
    secret: str
    port: int = 0
    tls: PeerTls | None = None


class BlockStreamServer:
    """Answers Fetch from what is offered."""

    def __init__(self, binding: BlockStreamBinding, offered: OfferedBlocks) -> None:
        """Listen; OSError or RuntimeError if the port cannot be had."""
        self._secret = binding.secret.encode()
        self._offered = offered
        self._server = grpc.server(
            ThreadPoolExecutor(NUM_THREADS, "block-stream"), options=message_limits()
        )
        handler = grpc.unary_stream_rpc_method_handler(
            self._fetch,
            request_deserializer=wire.FetchBlocks.FromString,
            response_serializer=wire.BlockChunk.SerializeToString,
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"Fetch": handler}),)
        )
        address = f"{binding.host}:{binding.port}"
        if binding.tls is None:
            self.port = int(self._server.add_insecure_port(address))
        else:
            credentials = binding.tls.server_credentials()
            self.port = int(self._server.add_secure_port(address, credentials))
        self._server.start()
        log.info("block stream listening host=%s port=%d", binding.host, self.port)

    def close(self) -> None:
        """Stop listening, and wait a moment for who reads now."""
        self._server.stop(STOP_GRACE_S).wait()

    def _fetch(
        self, request: wire.FetchBlocks, context: grpc.ServicerContext
    ) -> Iterator[wire.BlockChunk]:
        secret = dict(context.invocation_metadata()).get(SECRET_METADATA_KEY, "")
        if not hmac.compare_digest(str(secret).encode(), self._secret):
            log.warning("peer without the secret turned away peer=%s", context.peer())
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong cluster secret")
        names = list(request.names)
        if len(names) > MAX_NAMES or any(len(name) != HASH_BYTES for name in names):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected names of blocks")
        yield from _chunks(self._offered.find(request.key, names))


def message_limits() -> tuple[tuple[str, int], ...]:
    """Of both ends, so that no message is larger than two chunks."""
    return (
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.so_reuseport", 0),
    )


def _chunks(blocks: Sequence[OfferedBlock]) -> Iterator[wire.BlockChunk]:
    """Messages of CHUNK_BYTES at most, small blocks together and large ones in pieces."""
    parts: list[wire.BlockPart] = []
    room_bytes = CHUNK_BYTES
    for block in blocks:
        header = block.header
        for half in (block.keys, block.values):
            start = 0
            while start < len(half):
                piece = bytes(half[start : start + room_bytes])
                parts.append(wire.BlockPart(header=header, payload=piece))
                header = b""
                start += len(piece)
                room_bytes -= len(piece)
                if room_bytes == 0:
                    yield wire.BlockChunk(parts=parts)
                    parts, room_bytes = [], CHUNK_BYTES
    if parts:
        yield wire.BlockChunk(parts=parts)
