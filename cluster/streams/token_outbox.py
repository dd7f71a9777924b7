"""Holds what one gateway has not taken yet, in bounded memory however slowly it reads.

A step that finds an earlier one still waiting is merged into it: tokens of one choice are joined,
the report is replaced by the newest, and KV events beyond a bound are dropped oldest first, which
their numbers show. So an engine never waits for a reader, and the memory held is bounded by the
open requests' own max_tokens. A few sent messages are kept, so that a stream that broke and came
back goes on where it stopped.
"""

from collections import deque
from dataclasses import replace

from cluster.live.live_codec import join_views
from cluster.replica.kv_outbox import KvOutbox
from cluster.streams.stream_codec import (
    EngineReport,
    Heartbeat,
    KvEventBatch,
    StepMessage,
    encode_heartbeat,
    encode_step,
)
from cluster.wire import token_stream_pb2 as wire
from replicas.engine_view import EngineView
from replicas.request import TokenEntry
from router.prefixes.kv_events import KvSnapshot

MAX_REPLAY_MESSAGES = 256
MAX_REPLAY_BYTES = 8 * 1024 * 1024
MAX_KV_EVENTS = 4096
# At most some 3 MB on the wire, well below the streams' limit however much has waited.
MAX_MESSAGE_TOKENS = 1_000_000
# At most some 4 MB on the wire.
MAX_MESSAGE_REPORTS = 16

_ChoiceKey = tuple[str, int, int]


class TokenOutbox:
    """Messages for one gateway, made as late as possible and merged until then."""

    def __init__(
        self,
        *,
        max_replay_messages: int = MAX_REPLAY_MESSAGES,
        max_replay_bytes: int = MAX_REPLAY_BYTES,
        max_kv_events: int = MAX_KV_EVENTS,
        max_message_tokens: int = MAX_MESSAGE_TOKENS,
    ) -> None:
        self._max_replay_messages = max_replay_messages
        self._max_replay_bytes = max_replay_bytes
        self._max_message_tokens = max_message_tokens
        self._entries: dict[_ChoiceKey, TokenEntry] = {}
        self._report: EngineReport | None = None
        self._kv = KvOutbox(max_events=max_kv_events)
        self._view: EngineView | None = None
        self._heartbeat: Heartbeat | None = None
        self._metric_reports: dict[str, wire.MetricReport] = {}
        self._sequence = 0
        self._sent: deque[tuple[int, bytes]] = deque()
        self._sent_bytes = 0
        self._again: deque[bytes] = deque()
        self._num_steps_waiting = 0
        self.num_coalesced_steps = 0

    def add_step(
        self,
        entries: tuple[TokenEntry, ...],
        report: EngineReport,
        kv: KvEventBatch | None,
        view: EngineView | None = None,
    ) -> None:
        """Take in one step's news for this gateway."""
        for entry in entries:
            key = (entry.request_id, entry.attempt, entry.choice)
            earlier = self._entries.get(key)
            self._entries[key] = entry if earlier is None else join_entries(earlier, entry)
        if kv is not None:
            self._kv.add(kv)
        self._view = join_views(self._view, view)
        self._report = report
        self._num_steps_waiting += 1
        if self._num_steps_waiting > 1:
            self.num_coalesced_steps += 1

    def add_kv_snapshot(self, parts: tuple[KvSnapshot, ...], report: EngineReport) -> None:
        """Say all that the prefix cache can find; changes that wait are part of it already."""
        self._kv.add_snapshot(parts)
        self._report = report

    def add_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Say that the replica lives; replaces a heartbeat that was not taken."""
        self._heartbeat = heartbeat

    def add_metric_report(self, source: str, report: wire.MetricReport) -> None:
        """Let the next heartbeats carry a process's figures; replaces older ones of its."""
        self._metric_reports[source] = report

    def take(self) -> bytes | None:
        """The next message to send, serialised; None when there is nothing to say."""
        if self._again:
            return self._again.popleft()
        if self._report is not None:
            return self._take_step(self._report)
        if self._heartbeat is not None:
            heartbeat = replace(self._heartbeat, metric_reports=self._take_metric_reports())
            self._heartbeat = None
            return encode_heartbeat(heartbeat).SerializeToString()
        return None

    def rewind(self, last_sequence: int) -> bool:
        """Send again all after `last_sequence`; False if some of that is no longer kept."""
        if last_sequence > self._sequence:
            return False
        oldest = self._sent[0][0] if self._sent else self._sequence + 1
        if last_sequence + 1 < oldest:
            return False
        self._again = deque(message for number, message in self._sent if number > last_sequence)
        return True

    def _take_step(self, report: EngineReport) -> bytes:
        self._sequence += 1
        kv_snapshots, kv_events = self._kv.take()
        message = encode_step(
            StepMessage(
                sequence=self._sequence,
                entries=self._take_entries(),
                report=report,
                kv_events=kv_events,
                view=self._view,
                kv_snapshots=kv_snapshots,
            )
        ).SerializeToString()
        if not self._entries and not self._kv:
            self._report = None
        self._view = None
        self._num_steps_waiting = 0
        self._keep(message)
        return message

    def _take_entries(self) -> tuple[TokenEntry, ...]:
        """As many entries as fit in a message, at least one; the others wait for the next."""
        taken: list[TokenEntry] = []
        num_tokens = 0
        for key, entry in list(self._entries.items()):
            num_tokens += len(entry.token_ids)
            # A likely token's id and log probability take about as much room as a token.
            num_tokens += sum(2 + 2 * len(each.top) for each in entry.logprobs)
            if taken and num_tokens > self._max_message_tokens:
                break
            taken.append(self._entries.pop(key))
        return tuple(taken)

    def _take_metric_reports(self) -> tuple[wire.MetricReport, ...]:
        sources = list(self._metric_reports)[:MAX_MESSAGE_REPORTS]
        return tuple(self._metric_reports.pop(source) for source in sources)

    def _keep(self, message: bytes) -> None:
        self._sent.append((self._sequence, message))
        self._sent_bytes += len(message)
        while (
            len(self._sent) > self._max_replay_messages or self._sent_bytes > self._max_replay_bytes
        ):
            self._sent_bytes -= len(self._sent.popleft()[1])


def join_entries(earlier: TokenEntry, later: TokenEntry) -> TokenEntry:
    """Two entries of one choice as one; an empty earlier one (admission) leaves no trace."""
    assert not earlier.token_ids or earlier.index + len(earlier.token_ids) == later.index, (
        earlier,
        later,
    )
    return TokenEntry(
        request_id=later.request_id,
        attempt=later.attempt,
        choice=later.choice,
        index=earlier.index if earlier.token_ids else later.index,
        token_ids=earlier.token_ids + later.token_ids,
        finish_reason=later.finish_reason or earlier.finish_reason,
        stop_token_id=(
            earlier.stop_token_id if later.stop_token_id is None else later.stop_token_id
        ),
        num_cached_tokens=earlier.num_cached_tokens or later.num_cached_tokens,
        refusal=later.refusal or earlier.refusal,
        timeline=later.timeline or earlier.timeline,
        logprobs=earlier.logprobs + later.logprobs,
        handoff=later.handoff or earlier.handoff,
    )


def drop_tokens(entry: TokenEntry, num_tokens: int) -> TokenEntry:
    """The entry without its first tokens: those that its reader has already."""
    if not num_tokens:
        return entry
    return replace(
        entry,
        index=entry.index + num_tokens,
        token_ids=entry.token_ids[num_tokens:],
        logprobs=entry.logprobs[num_tokens:],
    )
