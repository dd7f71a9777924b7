"""Carries the blocks of a hand-off from replica to replica over gRPC, past the store."""

import logging
import threading
from collections.abc import Iterable, Sequence

import grpc

from cluster.handoff.block_stream_server import (
    METHOD,
    BlockStreamBinding,
    BlockStreamServer,
    message_limits,
)
from cluster.peer_tls import PEER_NAME
from cluster.streams.stream_codec import SECRET_METADATA_KEY
from cluster.wire import block_stream_pb2 as wire
from kvstore.block_hash import BlockHash
from kvstore.block_store import BlockLayout, FetchEnd, StoredBlock, WantedBlock
from kvstore.block_transport import Delivery, Source, TransportName
from kvstore.errors import CorruptBlock
from kvstore.offered_blocks import OfferedBlocks, verify

log = logging.getLogger(__name__)

_MOST_PEERS = 64
_ENDS: dict[grpc.StatusCode, FetchEnd] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "timeout",
    grpc.StatusCode.UNAUTHENTICATED: "refused",
    grpc.StatusCode.UNAVAILABLE: "connection",
}


class BlockStreamTransport:
    """See BlockTransport. Listens from the start, until it is closed."""

    name: TransportName = "grpc"

    def __init__(self, layout: BlockLayout, binding: BlockStreamBinding) -> None:
        self._layout = layout
        self._binding = binding
        self._offered = OfferedBlocks(layout)
        self._server = BlockStreamServer(binding, self._offered)
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        self.address = f"{binding.advertise_host}:{self._server.port}"

    def offer(self, key: BlockHash, blocks: Sequence[StoredBlock], *, ttl_s: float) -> bool:
        """See BlockTransport."""
        self._offered.offer(key, blocks)
        return True

    def withdraw(self, key: BlockHash) -> None:
        """See BlockTransport. A chunk that is being read meanwhile has another checksum."""
        self._offered.withdraw(key)

    def fetch(
        self,
        source: Source,
        wanted: Sequence[WantedBlock],
        targets: Sequence[memoryview],
        *,
        timeout_s: float,
    ) -> Delivery:
        """See BlockTransport."""
        placing = _Placing(self._layout, wanted, targets)
        end: FetchEnd = "complete"
        try:
            fetch = self._channel(source.address).unary_stream(
                METHOD,
                request_serializer=wire.FetchBlocks.SerializeToString,
                response_deserializer=wire.BlockChunk.FromString,
            )
            request = wire.FetchBlocks(key=source.key, names=[block.name for block in wanted])
            metadata = ((SECRET_METADATA_KEY, self._binding.secret),)
            placing.take(fetch(request, timeout=timeout_s, metadata=metadata))
        except CorruptBlock as error:
            log.warning("block from a replica corrupt kind=%s: %s", error.kind, error)
            end = "corrupt"
        except (grpc.RpcError, ValueError) as error:
            code = error.code() if isinstance(error, grpc.Call) else None
            end = _ENDS.get(code, "protocol") if code is not None else "protocol"
            log.info("block stream failed address=%s end=%s: %s", source.address, end, code)
            self._drop_channel(source.address)
        if end == "complete" and placing.num_whole < len(wanted):
            end = "absent"
        return Delivery(placing.num_whole, placing.num_bytes, end)

    def close(self) -> None:
        """See BlockTransport."""
        self._offered.clear()
        self._server.close()
        with self._lock:
            channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.close()

    def _channel(self, address: str) -> grpc.Channel:
        with self._lock:
            channel = self._channels.get(address)
            if channel is None:
                if len(self._channels) >= _MOST_PEERS:
                    self._channels.pop(next(iter(self._channels))).close()
                channel = self._channels[address] = self._open(address)
            return channel

    def _open(self, address: str) -> grpc.Channel:
        options: tuple[tuple[str, object], ...] = message_limits()
        tls = self._binding.tls
        if tls is None:
            return grpc.insecure_channel(address, options=options)
        named = (*options, ("grpc.ssl_target_name_override", PEER_NAME))
        return grpc.secure_channel(address, tls.channel_credentials(), options=named)

    def _drop_channel(self, address: str) -> None:
        """A new one reads the certificates anew, and does not wait out the last one's back-off."""
        with self._lock:
            channel = self._channels.pop(address, None)
        if channel is not None:
            channel.close()


class _Placing:
    """Puts the pieces of a stream into the targets, and verifies each block as it is whole."""

    def __init__(
        self,
        layout: BlockLayout,
        wanted: Sequence[WantedBlock],
        targets: Sequence[memoryview],
    ) -> None:
        self._layout = layout
        self._wanted = wanted
        self._targets = targets
        self._header = b""
        self._filled_bytes = 0
        self.num_whole = 0
        self.num_bytes = 0

    def take(self, chunks: Iterable[wire.BlockChunk]) -> None:
        """Every piece of a stream; raises CorruptBlock."""
        for chunk in chunks:
            for part in chunk.parts:
                self._take_part(part)

    def _take_part(self, part: wire.BlockPart) -> None:
        payload_bytes = self._layout.payload_bytes
        stop = self._filled_bytes + len(part.payload)
        is_first = self._filled_bytes == 0
        if self.num_whole == len(self._wanted) or stop > payload_bytes:
            raise CorruptBlock("more bytes than asked for", kind="truncated")
        if is_first != bool(part.header):
            raise CorruptBlock("a block begins within another", kind="damaged")
        self._header = part.header or self._header
        self._targets[self.num_whole][self._filled_bytes : stop] = part.payload
        self._filled_bytes = stop
        if stop == payload_bytes:
            wanted, target = self._wanted[self.num_whole], self._targets[self.num_whole]
            verify(self._header, target, layout=self._layout, wanted=wanted)
            self.num_whole += 1
            self.num_bytes += payload_bytes
            self._filled_bytes = 0
