"""One replica as a gateway sees it: its stream, its state, and the feeds that hang on it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from cluster.errors import ReplicaLost
from cluster.live.live_codec import join_views
from cluster.metrics.metric_report import MetricReport, decode_metric_report
from cluster.peer_tls import PeerTls
from cluster.replica.replica_announcement import ReplicaAnnouncement
from cluster.streams.stream_codec import EngineReport, Heartbeat, KvEventBatch, StepMessage
from cluster.streams.token_feed import NotAccepted, StreamFeed
from cluster.streams.token_stream_client import StreamTarget, TokenStreamClient
from cluster.wire import token_stream_pb2 as wire
from replicas.engine_stats import EngineStats
from replicas.engine_view import EngineView
from replicas.handoff import HandoffIn
from replicas.request import EngineRequest
from router.config import RouterConfig
from router.liveness import ReplicaLiveness
from router.pace import StepSample
from router.prefixes.kv_events import KvSnapshot
from router.replica_status import ReplicaState, ReplicaStatus

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatewayIdentity:
    """gateway_id: unique to this gateway process. secret: the cluster's, for token streams.

    tls: as the replicas' token streams have it.
    """

    gateway_id: str
    secret: str
    max_message_bytes: int = 16 * 1024 * 1024
    tls: PeerTls | None = None


@dataclass(slots=True)
class StreamBreaks:
    """Broken streams of one gateway: those that came back without a gap, and those that did not."""

    num_resumed: int = 0
    num_lost: int = 0


@dataclass(frozen=True, slots=True)
class LinkEvents:
    """Whom a link tells: of every change of status, of KV news with the replica's id, of figures.

    on_attached: a stream begins without a memory of an earlier one.
    breaks: where broken streams are counted.
    """

    on_status: Callable[[ReplicaStatus], None]
    on_attached: Callable[[str], None]
    on_kv_events: Callable[[str, KvEventBatch], None]
    on_kv_snapshot: Callable[[str, KvSnapshot], None]
    on_metric_report: Callable[[MetricReport], None]
    breaks: StreamBreaks


class ReplicaLink:
    """Listens to one replica's stream; knows its state at any moment without asking it."""

    def __init__(
        self,
        replica_id: str,
        announcement: ReplicaAnnouncement,
        *,
        identity: GatewayIdentity,
        config: RouterConfig,
        events: LinkEvents,
        clock: Callable[[], float],
    ) -> None:
        self.replica_id = replica_id
        self.announcement = announcement
        self._events = events
        self._clock = clock
        self._report = EngineReport()
        self._view: EngineView | None = None
        self._is_broken = False
        self._feeds: dict[tuple[str, int], StreamFeed] = {}
        self._liveness = ReplicaLiveness(
            heartbeat_interval_s=config.heartbeat_interval_s,
            suspect_after_missed=config.suspect_after_missed,
            stuck_after_s=config.stuck_after_s,
        )
        self._client = TokenStreamClient(
            StreamTarget(
                address=announcement.address,
                gateway_id=identity.gateway_id,
                secret=identity.secret,
                resume_timeout_s=config.resume_timeout_s,
                max_message_bytes=identity.max_message_bytes,
                tls=identity.tls,
            ),
            listener=self,
            clock=clock,
        )

    def start(self) -> None:
        """Open the stream in the background."""
        self._client.start()

    async def close(self) -> None:
        """Close the stream; feeds that are still open end with ReplicaLost."""
        await self._client.close()
        self._fail_feeds("The replica is gone.")

    @property
    def num_feeds(self) -> int:
        """Requests of this gateway that are open there."""
        return len(self._feeds)

    @property
    def report(self) -> EngineReport:
        """What the replica said last."""
        return self._report

    def status(self) -> ReplicaStatus:
        """What the router should know of this replica now."""
        stats = self._report.stats
        return ReplicaStatus(
            replica_id=self.replica_id,
            role=self.announcement.role,
            state=self._liveness.state(self._clock()),
            outstanding_tokens=self._report.outstanding_tokens,
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            max_num_seqs=stats.max_num_seqs,
            num_blocks=stats.num_blocks,
            num_free_blocks=stats.num_free_blocks,
            num_waiting_tokens=stats.num_waiting_tokens,
            num_prompt_tokens_left=stats.num_prompt_tokens_left,
            block_size=stats.block_size,
            last_step=_last_step(stats),
            finished_total=stats.finished_total,
            generated_total=stats.generated_tokens_total,
            fetch_token_s=self._report.fetch_token_s,
            admissions=self._report.admissions,
            epoch=self._report.epoch,
        )

    def stuck_s(self) -> float:
        """For how long it has had work without a step; 0.0 when it advances."""
        return self._liveness.stuck_s(self._clock())

    def silence_s(self) -> float:
        """For how long nothing was heard of it while its stream was open."""
        return self._liveness.silence_s(self._clock())

    def draining_s(self) -> float:
        """For how long it has been draining; 0.0 when it is not."""
        return self._liveness.draining_s(self._clock())

    @property
    def is_advancing(self) -> bool:
        """Whether it has work and its engine makes steps."""
        return self._liveness.is_advancing(self._clock())

    def watch(self, seconds: float) -> None:
        """Ask the replica for views for so long from now on."""
        self._client.watch(seconds)

    def ask_kv_snapshot(self) -> None:
        """Ask the replica for all that its prefix cache can find."""
        self._client.ask_kv_snapshot()

    def take_view(self) -> EngineView | None:
        """What was seen of its engine since the last call."""
        view, self._view = self._view, None
        return view

    def add_feed(self, feed: StreamFeed) -> None:
        """Entries of that request and attempt go to this feed from now on."""
        self._feeds[(feed.request.request_id, feed.request.attempt)] = feed

    def remove_feed(self, feed: StreamFeed) -> None:
        """Nobody reads there any more; later entries of it are dropped."""
        self._feeds.pop((feed.request.request_id, feed.request.attempt), None)

    def finish_choice(self, request_id: str, attempt: int, choice: int) -> None:
        """Tell the replica that a stop string ended this choice."""
        self._client.finish_choice(request_id, attempt, choice)

    def expect_handoff(self, request: EngineRequest, handoff: HandoffIn) -> None:
        """Tell the replica of a request that will be handed over to it."""
        self._client.expect_handoff(request, handoff)

    def forget_handoff(self, request_id: str) -> None:
        """Tell the replica that a request will not be handed over to it."""
        self._client.forget_handoff(request_id)

    def send_metric_report(self, report: wire.MetricReport) -> None:
        """Let the other gateways of that replica know this gateway's figures."""
        self._client.send_metric_report(report)

    def reject(self, request_id: str, attempt: int, reason: str) -> None:
        """Serve could not bring that request to the replica."""
        feed = self._feeds.get((request_id, attempt))
        if feed is not None and not feed.admitted.done():
            feed.fail(NotAccepted(reason))

    def leave_set(self) -> None:
        """The replica is no longer deployed: it drains until its stream ends."""
        self._liveness.on_left_set(self._clock())
        self._tell()

    @property
    def is_gone(self) -> bool:
        """Whether it left the deployment and its stream has ended."""
        return self._liveness.state(self._clock()) is ReplicaState.GONE

    def on_open(self) -> None:
        """The stream is up."""
        if self._is_broken:
            self._events.breaks.num_resumed += 1
            for feed in self._feeds.values():
                feed.repeat_finishes()
        else:
            self._events.on_attached(self.replica_id)
        self._is_broken = False
        self._liveness.on_open(self._clock())
        self._tell()

    def on_step(self, step: StepMessage) -> None:
        """Status first: whoever is admitted by this step is already counted in it."""
        self._liveness.on_step(self._clock())
        self._report = step.report
        self._view = join_views(self._view, step.view)
        self._tell()
        for snapshot in step.kv_snapshots:
            self._events.on_kv_snapshot(self.replica_id, snapshot)
        for batch in step.kv_events:
            self._events.on_kv_events(self.replica_id, batch)
        for entry in step.entries:
            feed = self._feeds.get((entry.request_id, entry.attempt))
            if feed is not None:
                feed.push(entry)

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """The replica lives."""
        self._liveness.on_heartbeat(
            self._clock(),
            last_step_age_s=heartbeat.last_step_age_s,
            has_work=heartbeat.has_work,
            is_accepting=heartbeat.is_accepting,
        )
        self._report = heartbeat.report
        self._tell()
        for message in heartbeat.metric_reports:
            if (report := decode_metric_report(message)) is not None:
                self._events.on_metric_report(report)

    def on_break(self) -> None:
        """The stream broke and may come back."""
        self._is_broken = True
        self._liveness.on_break()
        self._tell()

    def on_lost(self, reason: str) -> None:
        """Whatever was open there is lost."""
        self._is_broken = False
        self._events.breaks.num_lost += 1
        self._liveness.on_lost()
        self._report = EngineReport()
        log.warning("replica lost replica=%s open=%d", self.replica_id, len(self._feeds))
        self._fail_feeds("The replica was lost while it worked on the request.")
        self._tell()

    def _fail_feeds(self, message: str) -> None:
        for feed in list(self._feeds.values()):
            feed.fail(ReplicaLost(message))

    def _tell(self) -> None:
        self._events.on_status(self.status())


def _last_step(stats: EngineStats) -> StepSample | None:
    """The newest step as far as its pace matters; None before the first."""
    if not stats.step:
        return None
    return StepSample(
        step=stats.step,
        num_prefill_tokens=stats.num_prefill_tokens,
        num_decode_tokens=stats.num_decode_tokens,
        run_s=stats.run_s,
    )
