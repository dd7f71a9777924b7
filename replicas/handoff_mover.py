"""Carries hand-offs beside the engine: offers blocks, publishes tables, reads both.

It lives with StoreMover, over the same slots of host memory. Offers and ends go through one thread,
in their order, so that a table is written after the last of its blocks was acknowledged, and slots
are free once their hand-off was withdrawn; what others published is read in another.
"""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from kvstore.block_store import BlockLayout, FetchEnd, StoredBlock, WantedBlock
from kvstore.block_transport import BlockTransport, Source
from kvstore.errors import CorruptTable, StoreUnavailable
from kvstore.handoff_table import Offer, decode_table, encode_table
from kvstore.handoff_tables import HandoffTables
from replicas.handoff import HandoffFault
from replicas.memory.handoff_jobs import (
    Adopted,
    AdoptJob,
    HandoffAnswer,
    HandoffJob,
    Offered,
    OfferJob,
    ReadTableJob,
    TableRead,
    WithdrawJob,
    Withdrawn,
)
from replicas.memory.host_buffer import HostBuffer
from replicas.memory.host_tier import HostBlock
from replicas.transport_choice import TransportChoice, offering

log = logging.getLogger(__name__)

NUM_READERS = 2
_FAULTS: dict[FetchEnd, HandoffFault] = {"absent": "absent", "corrupt": "corrupt"}


@dataclass(slots=True)
class _Sent:
    """What was offered of one hand-off. transports: those that have all of it so far."""

    transports: list[BlockTransport]
    num_bytes: int = 0


class HandoffMover:
    """Both ends of hand-offs of one engine. answer: called from any of its threads.

    transports: all that there are, closed with the mover as tables is; a reader tries those first
    that nothing is known of, in this order, then the fastest.
    """

    def __init__(
        self,
        transports: Sequence[BlockTransport],
        tables: HandoffTables,
        *,
        layout: BlockLayout,
        buffer: HostBuffer,
        answer: Callable[[HandoffAnswer], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transports = tuple(transports)
        self._tables = tables
        self._layout = layout
        self._buffer = buffer
        self._answer = answer
        self._clock = clock
        self._choice = TransportChoice(clock=clock)
        self._sent: dict[bytes, _Sent] = {}
        self._sender = ThreadPoolExecutor(1, "handoff-sender")
        self._readers = ThreadPoolExecutor(NUM_READERS, "handoff-reader")

    def take(self, job: HandoffJob) -> None:
        """Queue a job; not after `close`."""
        is_sending = isinstance(job, OfferJob | WithdrawJob)
        (self._sender if is_sending else self._readers).submit(self._do, job)

    def close(self) -> None:
        """Let the jobs in hand end, forget the others, withdraw what is offered."""
        for threads in (self._sender, self._readers):
            threads.shutdown(cancel_futures=True)
        for key in list(self._sent):
            self._withdraw(key)
        for transport in self._transports:
            transport.close()
        self._tables.close()

    def _do(self, job: HandoffJob) -> None:
        answer = failed(job)
        try:
            answer = self._work(job)
        except StoreUnavailable as error:
            log.info("handoff job failed kind=%s: %s", error.kind, error)
        except Exception:
            # Whatever it was, the engine waits for an answer, and can do without a hand-off.
            log.exception("handoff job failed job=%s", type(job).__name__)
        self._answer(answer)

    def _work(self, job: HandoffJob) -> HandoffAnswer:
        match job:
            case OfferJob():
                return self._offer(job)
            case WithdrawJob(key):
                self._withdraw(key)
                return Withdrawn(key)
            case ReadTableJob(key, timeout_s, is_early):
                return replace(self._read_table(key, timeout_s), is_early=is_early)
            case AdoptJob():
                return self._adopt(job)

    # The side that computed the prompt.

    def _offer(self, job: OfferJob) -> Offered:
        sent = self._sent.setdefault(job.key, _Sent(offering(self._transports)))
        blocks = [self._stored(block, job.tail_name) for block in job.blocks]
        if blocks:
            sent.transports = [
                transport
                for transport in sent.transports
                if transport.offer(job.key, blocks, ttl_s=job.ttl_s)
            ]
            sent.num_bytes += len(blocks) * self._layout.payload_bytes
        if not sent.transports:
            return Offered(job.key, "unavailable")
        names = ",".join(transport.name for transport in sent.transports)
        offers = tuple(Offer(each.name, each.address) for each in sent.transports)
        table = replace(job.table, namespace=self._layout.namespace, offers=offers)
        try:
            self._tables.put(job.key, encode_table(table), ttl_s=job.ttl_s)
        except StoreUnavailable:
            # Nobody counts on hearing of a hand-off before it is whole.
            if job.is_last:
                raise
        return Offered(job.key, None, job.is_last, sent.num_bytes, names)

    def _withdraw(self, key: bytes) -> None:
        sent = self._sent.pop(key, None)
        if sent is None:
            return
        for transport in self._transports:
            transport.withdraw(key)
        self._delete_table(key)

    def _stored(self, block: HostBlock, private_name: bytes | None) -> StoredBlock:
        half_bytes = self._layout.half_bytes
        slot = self._buffer.slot(block.slot)
        return StoredBlock(
            block.name,
            block.parent,
            block.token_ids,
            slot[:half_bytes],
            slot[half_bytes:],
            is_private=block.name == private_name,
        )

    # The side that computes the output.

    def _read_table(self, key: bytes, timeout_s: float) -> TableRead:
        value = self._tables.get(key, timeout_s=timeout_s)
        if value is None:
            return TableRead(key, None, "absent")
        try:
            table = decode_table(value)
        except CorruptTable as error:
            log.warning("handoff table corrupt key=%s: %s", key.hex(), error)
            return TableRead(key, None, "corrupt")
        if table.namespace != self._layout.namespace:
            log.warning(
                "handoff table of another layout found=%s expected=%s",
                table.namespace,
                self._layout.namespace,
            )
            return TableRead(key, None, "incompatible")
        return TableRead(key, table)

    def _adopt(self, job: AdoptJob) -> Adopted:
        deadline = self._clock() + job.timeout_s
        wanted = [WantedBlock(block.name, block.token_ids) for block in job.blocks]
        targets = [self._buffer.slot(block.slot) for block in job.blocks]
        num_whole, num_bytes = 0, 0
        fault: HandoffFault | None = None if not wanted else "unavailable"
        used: list[str] = []
        for transport, source in self._ways_to(job):
            timeout_s = deadline - self._clock()
            if num_whole == len(wanted) or timeout_s <= 0.0:
                break
            rest = slice(num_whole, None)
            started_at = self._clock()
            delivery = transport.fetch(source, wanted[rest], targets[rest], timeout_s=timeout_s)
            self._choice.note(source, transport.name, delivery, self._clock() - started_at)
            num_whole += delivery.num_whole
            num_bytes += delivery.num_bytes
            if delivery.num_whole:
                used.append(transport.name)
            is_late = self._clock() >= deadline
            fault = "expired" if is_late else _FAULTS.get(delivery.ended_by, "unavailable")
        if not job.is_early:
            self._delete_table(job.key)
        fault = None if num_whole == len(wanted) else fault
        return Adopted(job.key, num_whole, fault, num_bytes, "+".join(used), job.is_early)

    def _ways_to(self, job: AdoptJob) -> list[tuple[BlockTransport, Source]]:
        addresses = {offer.transport: offer.address for offer in job.table.offers}
        ways = [
            (transport, Source(job.key, addresses[transport.name]))
            for transport in self._transports
            if transport.name in addresses
        ]
        return sorted(ways, key=lambda way: self._choice.rank(way[1], way[0].name))

    def _delete_table(self, key: bytes) -> None:
        try:
            self._tables.delete(key)
        except StoreUnavailable as error:
            log.info("handoff table not deleted, it ends by itself kind=%s", error.kind)


def failed(job: HandoffJob) -> HandoffAnswer:
    match job:
        case OfferJob(key):
            return Offered(key, "unavailable")
        case WithdrawJob(key):
            return Withdrawn(key)
        case ReadTableJob(key, is_early=is_early):
            return TableRead(key, None, "unavailable", is_early)
        case AdoptJob(key, is_early=is_early):
            return Adopted(key, 0, "unavailable", is_early=is_early)
