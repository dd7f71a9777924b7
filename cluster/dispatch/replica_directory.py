"""Which replicas a gateway can use: a stream to each that appears, closed when it is gone."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from cluster.dispatch.dispatcher import ClusterHealth
from cluster.dispatch.replica_link import (
    GatewayIdentity,
    LinkEvents,
    ReplicaLink,
    StreamBreaks,
)
from cluster.metrics.metric_report import MetricReport, encode_metric_report
from cluster.replica.replica_announcement import BadAnnouncement, ReplicaAnnouncement
from cluster.streams.stream_codec import PROTOCOL_VERSION
from router.config import RouterConfig
from router.prefixes.prefix_index import IndexFigures, PrefixIndex
from router.replica_status import ReplicaRole, ReplicaState, ReplicaStatus
from router.request_router import RequestRouter

log = logging.getLogger(__name__)

MetricListener = Callable[[MetricReport], None]


@dataclass(frozen=True, slots=True)
class Compatibility:
    """What a replica must have in common with this gateway; an empty fingerprint takes any."""

    fingerprint: str = ""


class ReplicaDirectory:
    """Follows the deployment's replica set and keeps the router's statuses fresh.

    index: learns what the replicas' prefix caches can find; None if nobody routes by it.
    """

    def __init__(
        self,
        *,
        identity: GatewayIdentity,
        config: RouterConfig,
        router: RequestRouter,
        clock: Callable[[], float],
        compatibility: Compatibility,
        index: PrefixIndex | None = None,
    ) -> None:
        self._identity = identity
        self._config = config
        self._router = router
        self._clock = clock
        self._compatibility = compatibility
        self._index = index
        self._metric_listener: MetricListener = _ignore_metric_report
        self.stream_breaks = StreamBreaks()
        self._events = LinkEvents(
            on_status=self._on_status,
            on_attached=index.attach if index else _ignore,
            on_kv_events=index.apply if index else _ignore,
            on_kv_snapshot=index.load if index else _ignore,
            on_metric_report=lambda report: self._metric_listener(report),
            breaks=self.stream_breaks,
        )
        self._links: dict[str, ReplicaLink] = {}
        self._misfits: dict[str, str] = {}
        self._roles: dict[str, ReplicaRole] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._first: asyncio.Future[ReplicaAnnouncement] | None = None
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to notice silence, which no event announces."""
        self._watch = asyncio.create_task(self._watch_silence())

    async def close(self) -> None:
        """Close every stream."""
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
        await asyncio.gather(*(link.close() for link in self._links.values()), *self._closing)
        self._links.clear()

    @property
    def gateway_id(self) -> str:
        """Whose streams these are."""
        return self._identity.gateway_id

    @property
    def links(self) -> Mapping[str, ReplicaLink]:
        """Every replica that is deployed or still drains."""
        return dict(self._links)

    @property
    def index_figures(self) -> IndexFigures | None:
        """How well the prefix caches are known; None if nobody routes by them."""
        return None if self._index is None else self._index.figures

    async def first_announcement(self) -> ReplicaAnnouncement:
        """What the first usable replica announced; waits for it."""
        for link in self._links.values():
            return link.announcement
        if self._first is None:
            self._first = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._first)

    def link(self, replica_id: str) -> ReplicaLink | None:
        """One replica, or None when it is gone."""
        return self._links.get(replica_id)

    def set_role(self, replica_id: str, role: ReplicaRole) -> None:
        """Route as if that replica had announced this role, as long as it is there."""
        link = self._links.get(replica_id)
        if link is not None:
            self._roles[replica_id] = role
            self._on_status(link.status())

    def hear_metrics(self, listener: MetricListener) -> None:
        """Tell `listener` the figures of replicas, and of other gateways, as they arrive."""
        self._metric_listener = listener

    def send_metric_report(self, report: MetricReport) -> None:
        """Let every other gateway know this one's figures, by way of the replicas."""
        message = encode_metric_report(report)
        for link in self._links.values():
            link.send_metric_report(message)

    def on_replica_set(self, replicas: Mapping[str, Mapping[str, object]]) -> None:
        """The deployment now consists of these replicas, by id, with what each announced."""
        for replica_id in self._links.keys() - replicas.keys():
            self._links[replica_id].leave_set()
        for replica_id in self._misfits.keys() - replicas.keys():
            del self._misfits[replica_id]
        for replica_id in replicas.keys() - self._links.keys() - self._misfits.keys():
            self._meet(replica_id, replicas[replica_id])

    def on_not_routed(self, replica_id: str, request_id: str, attempt: int, reason: str) -> None:
        """Serve could not bring a request to the replica that was chosen for it."""
        link = self._links.get(replica_id)
        if link is not None:
            link.reject(request_id, attempt, reason)

    def health(self) -> ClusterHealth:
        """Whether requests make progress, by the last statuses and heartbeats."""
        problems = list(self._misfits.values())
        num_usable = num_starting = 0
        for link in self._links.values():
            state = link.status().state
            num_usable += state in (ReplicaState.ACTIVE, ReplicaState.SUSPECT)
            num_starting += state is ReplicaState.STARTING
            if (stuck_s := link.stuck_s()) > 0.0:
                problems.append(f"A replica has had work for {stuck_s:.0f} s without a step.")
        return ClusterHealth(num_usable, tuple(problems), num_starting=num_starting)

    def _meet(self, replica_id: str, metadata: Mapping[str, object]) -> None:
        try:
            announcement = ReplicaAnnouncement.from_metadata(metadata)
        except BadAnnouncement as error:
            self._refuse(replica_id, f"A replica announced itself wrongly: {error}")
            return
        if announcement.protocol_version != PROTOCOL_VERSION:
            version = announcement.protocol_version
            self._refuse(replica_id, f"A replica speaks version {version} of the token stream.")
            return
        expected = self._compatibility.fingerprint
        if expected and announcement.fingerprint != expected:
            self._refuse(replica_id, "A replica serves another model than this gateway.")
            return
        link = ReplicaLink(
            replica_id,
            announcement,
            identity=self._identity,
            config=self._config,
            events=self._events,
            clock=self._clock,
        )
        self._links[replica_id] = link
        self._router.update(link.status())
        log.info("replica met replica=%s address=%s", replica_id, announcement.address)
        link.start()
        if self._first is not None and not self._first.done():
            self._first.set_result(announcement)

    def _refuse(self, replica_id: str, problem: str) -> None:
        log.error("replica not used replica=%s problem=%s", replica_id, problem)
        self._misfits[replica_id] = problem

    def _on_status(self, status: ReplicaStatus) -> None:
        link = self._links.get(status.replica_id)
        if link is None:
            return
        if status.state is not ReplicaState.GONE:
            role = self._roles.get(status.replica_id, status.role)
            self._router.update(status if role == status.role else replace(status, role=role))
            if self._index is not None:
                self._index.begin_epoch(status.replica_id, status.epoch)
            return
        del self._links[status.replica_id]
        self._roles.pop(status.replica_id, None)
        self._router.forget(status.replica_id)
        if self._index is not None:
            self._index.forget(status.replica_id)
        log.info("replica gone replica=%s", status.replica_id)
        # The link is telling us this from within its own stream's task, which cannot end itself.
        closing = asyncio.create_task(link.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _watch_silence(self) -> None:
        while True:
            await asyncio.sleep(self._config.heartbeat_interval_s)
            for link in list(self._links.values()):
                self._on_status(link.status())
            self._ask_snapshots()

    def _ask_snapshots(self) -> None:
        if self._index is None:
            return
        for command in self._index.due(self._clock()):
            link = self._links.get(command.replica_id)
            if link is not None:
                log.info("kv snapshot asked replica=%s reason=%s", link.replica_id, command.reason)
                link.ask_kv_snapshot()


def _ignore_metric_report(report: MetricReport) -> None:
    """Nobody shows figures."""


def _ignore(replica_id: str, *news: object) -> None:
    """Nobody routes by prefix."""
