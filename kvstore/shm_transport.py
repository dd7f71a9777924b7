"""Carries the blocks of a hand-off through memory that two processes of one machine share.

The offering end hands its slots' memory, read-only, to whoever connects to its socket; a reader
asks for names, gets offsets and headers, and copies once. The socket has no file (Linux's abstract
names), so that nothing is left when its owner dies, and takes only processes of the same user.
"""

import logging
import mmap
import os
import secrets
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from kvstore.block_hash import HASH_BYTES, BlockHash
from kvstore.block_store import BlockLayout, FetchEnd, StoredBlock, WantedBlock
from kvstore.block_transport import Delivery, Source, TransportName
from kvstore.errors import CorruptBlock
from kvstore.offered_blocks import OfferedBlocks, verify

log = logging.getLogger(__name__)

_PREFIX = "pagoda-blocks-"
_QUESTION = struct.Struct("<32sI")
_ANSWER = struct.Struct("<I")
_PLACE = struct.Struct("<QI")
_SIZE = struct.Struct("<Q")
_CREDENTIALS = struct.Struct("3i")
_MOST_NAMES = 1 << 16
_MOST_HEADER_BYTES = 1 << 20
_MOST_PEERS = 64
IDLE_TIMEOUT_S = 600.0


@dataclass(slots=True)
class _Peer:
    """A connection to an offering end, and its memory."""

    link: socket.socket
    memory: memoryview

    def close(self) -> None:
        self.link.close()


class ShmTransport:
    """See BlockTransport. fd, num_bytes: the memory that all offered blocks lie in.

    memory: the same, as this process sees it.
    """

    name: TransportName = "shm"

    def __init__(self, layout: BlockLayout, *, fd: int, memory: memoryview) -> None:
        self._layout = layout
        self._memory = memory
        self._start = _address_of(memory)
        self._offered = OfferedBlocks(layout)
        self._lock = threading.Lock()
        self._peers: dict[str, _Peer] = {}
        self._served: set[socket.socket] = set()
        self._is_closed = False
        self._read_only_fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        self.address = f"{_PREFIX}{secrets.token_hex(16)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{self.address}")
        self._listener.listen()
        threading.Thread(target=self._accept, name="shm-accept", daemon=True).start()

    def offer(self, key: BlockHash, blocks: Sequence[StoredBlock], *, ttl_s: float) -> bool:
        """See BlockTransport."""
        self._offered.offer(key, blocks)
        return True

    def withdraw(self, key: BlockHash) -> None:
        """See BlockTransport. A reader that is copying meanwhile finds another checksum."""
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
        if not source.address.startswith(_PREFIX):
            return Delivery(0, 0, "protocol")
        try:
            peer = self._take_peer(source.address, timeout_s)
        except OSError as error:
            # Another machine, or another network namespace of this one, or it is gone.
            log.info("shared memory not reached address=%s: %s", source.address, error)
            return Delivery(0, 0, "connection")
        try:
            delivery = self._read(peer, source.key, wanted, targets, timeout_s)
        except (OSError, struct.error, CorruptBlock) as error:
            peer.close()
            log.info("shared memory failed address=%s: %s", source.address, error)
            return Delivery(0, 0, "timeout" if isinstance(error, TimeoutError) else "connection")
        self._give_back(source.address, peer)
        return delivery

    def close(self) -> None:
        """See BlockTransport."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            peers, self._peers = list(self._peers.values()), {}
            served, self._served = self._served, set()
        for peer in peers:
            peer.close()
        for link in served:
            _hang_up(link)
        self._offered.clear()
        _hang_up(self._listener)
        os.close(self._read_only_fd)

    # The offering end.

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_closed:
                    link.close()
                    return
                self._served.add(link)
            threading.Thread(
                target=self._serve, args=(link,), name="shm-serve", daemon=True
            ).start()

    def _serve(self, link: socket.socket) -> None:
        with link:
            try:
                raw = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                _pid, uid, _gid = _CREDENTIALS.unpack(raw)
                if uid != os.getuid():
                    log.warning("process of another user turned away uid=%d", uid)
                    return
                link.settimeout(IDLE_TIMEOUT_S)
                socket.send_fds(link, [_SIZE.pack(self._memory.nbytes)], [self._read_only_fd])
                while True:
                    self._answer(link)
            except (OSError, struct.error):
                # The reader is gone, or has asked for nothing for long: it connects again.
                return
            finally:
                with self._lock:
                    self._served.discard(link)

    def _answer(self, link: socket.socket) -> None:
        key, num_names = _QUESTION.unpack(_receive(link, _QUESTION.size))
        if num_names > _MOST_NAMES:
            raise OSError(f"{num_names} names asked for")
        names = _receive(link, num_names * HASH_BYTES)
        found = self._offered.find(
            key, [names[i : i + HASH_BYTES] for i in range(0, len(names), HASH_BYTES)]
        )
        parts = [_ANSWER.pack(len(found))]
        for block in found:
            offset = _address_of(block.keys) - self._start
            parts += [_PLACE.pack(offset, len(block.header)), block.header]
        link.sendall(b"".join(parts))

    # The reading end.

    def _read(
        self,
        peer: _Peer,
        key: BlockHash,
        wanted: Sequence[WantedBlock],
        targets: Sequence[memoryview],
        timeout_s: float,
    ) -> Delivery:
        peer.link.settimeout(timeout_s)
        names = b"".join(block.name for block in wanted)
        peer.link.sendall(_QUESTION.pack(key, len(wanted)) + names)
        (num_found,) = _ANSWER.unpack(_receive(peer.link, _ANSWER.size))
        if num_found > len(wanted):
            raise CorruptBlock("more blocks than asked for", kind="damaged")
        places = [self._receive_place(peer) for _ in range(num_found)]
        num_bytes = self._layout.payload_bytes
        end: FetchEnd = "complete" if num_found == len(wanted) else "absent"
        for index, (offset, header) in enumerate(places):
            if offset + num_bytes > peer.memory.nbytes:
                raise CorruptBlock("a block beyond the end of the memory", kind="damaged")
            targets[index][:] = peer.memory[offset : offset + num_bytes]
            try:
                verify(header, targets[index], layout=self._layout, wanted=wanted[index])
            except CorruptBlock as error:
                log.warning("block in shared memory corrupt kind=%s: %s", error.kind, error)
                return Delivery(index, index * num_bytes, "corrupt")
        return Delivery(num_found, num_found * num_bytes, end)

    def _receive_place(self, peer: _Peer) -> tuple[int, bytes]:
        offset, header_bytes = _PLACE.unpack(_receive(peer.link, _PLACE.size))
        if header_bytes > _MOST_HEADER_BYTES:
            raise CorruptBlock(f"a header of {header_bytes} bytes", kind="damaged")
        return offset, _receive(peer.link, header_bytes)

    def _take_peer(self, address: str, timeout_s: float) -> _Peer:
        """A connection that nobody else uses now; raises OSError."""
        with self._lock:
            peer = self._peers.pop(address, None)
        if peer is not None and _is_alive(peer.link):
            return peer
        if peer is not None:
            peer.close()
        return _connect(address, timeout_s)

    def _give_back(self, address: str, peer: _Peer) -> None:
        surplus: _Peer | None = peer
        with self._lock:
            if not self._is_closed and address not in self._peers:
                self._peers[address] = peer
                is_one_more = len(self._peers) > _MOST_PEERS
                surplus = self._peers.pop(next(iter(self._peers))) if is_one_more else None
        if surplus is not None:
            surplus.close()


def _connect(address: str, timeout_s: float) -> _Peer:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.settimeout(timeout_s)
        link.connect(f"\0{address}")
        size, fds, _flags, _address = socket.recv_fds(link, _SIZE.size, 1)
        if len(size) != _SIZE.size or len(fds) != 1:
            raise OSError("no memory was handed over")
        (num_bytes,) = _SIZE.unpack(size)
        try:
            pages = mmap.mmap(fds[0], num_bytes, prot=mmap.PROT_READ)
        finally:
            os.close(fds[0])
    except (OSError, ValueError) as error:
        link.close()
        raise OSError(str(error)) from error
    return _Peer(link, memoryview(pages))


def _hang_up(link: socket.socket) -> None:
    """Wakes the thread that waits on it; closing alone would leave it waiting."""
    with suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
    link.close()


def _is_alive(link: socket.socket) -> bool:
    """Whether an idle connection is still open: there is nothing to read from it then."""
    link.setblocking(False)
    try:
        link.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _receive(link: socket.socket, num_bytes: int) -> bytes:
    content = bytearray(num_bytes)
    view = memoryview(content)
    while view:
        received = link.recv_into(view)
        if not received:
            raise ConnectionError("the other end hung up")
        view = view[received:]
    return bytes(content)


def _address_of(view: memoryview) -> int:
    return int(np.frombuffer(view, dtype=np.uint8).ctypes.data)
