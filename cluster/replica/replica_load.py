"""What a replica records for the scaling of its pool: its work, speed, room and latency."""

from collections import deque
from collections.abc import Iterable

from cluster.pools.pool_autoscaling import (
    ATTAINMENT,
    NUM_BLOCKS,
    NUM_HELD_BLOCKS,
    OUTSTANDING_TOKENS,
    TOKENS_PER_S,
)
from cluster.streams.stream_codec import EngineReport
from replicas.engine_stats import EngineStats
from replicas.request import TokenEntry
from router.pace import PaceMeter, StepSample
from router.pool_view import busy_tokens_per_s
from router.replica_status import ReplicaRole, ReplicaStatus

# Requests that an attainment is taken over: enough for a share, few enough to follow the traffic.
_NUM_RECENT = 100


class ReplicaLoad:
    """Follows the steps of one replica.

    ttft_slo_s, tpot_slo_s: latencies that count as met, inside the engine; 0 for none.
    """

    def __init__(self, role: ReplicaRole, *, ttft_slo_s: float, tpot_slo_s: float) -> None:
        self._role = role
        self._ttft_slo_s = ttft_slo_s
        self._tpot_slo_s = tpot_slo_s
        self._meter = PaceMeter()
        self._recent: deque[bool] = deque(maxlen=_NUM_RECENT)

    def see(self, stats: EngineStats, entries: Iterable[TokenEntry]) -> None:
        """Take in a step and what it had to say."""
        if stats.step:
            sample = StepSample(
                stats.step, stats.num_prefill_tokens, stats.num_decode_tokens, stats.run_s
            )
            self._meter.see(
                sample,
                finished_total=stats.finished_total,
                generated_total=stats.generated_tokens_total,
            )
        if self._ttft_slo_s or self._tpot_slo_s:
            for entry in entries:
                self._see_end(entry)

    def figures(self, report: EngineReport) -> dict[str, float]:
        """The last figures, by name; always the same names, as Serve wants them."""
        stats = report.stats
        status = ReplicaStatus(
            replica_id="",
            role=self._role,
            outstanding_tokens=report.outstanding_tokens,
            max_num_seqs=stats.max_num_seqs,
            num_waiting_tokens=stats.num_waiting_tokens,
            num_prompt_tokens_left=stats.num_prompt_tokens_left,
        )
        recent = self._recent
        return {
            OUTSTANDING_TOKENS: float(report.outstanding_tokens),
            TOKENS_PER_S: busy_tokens_per_s(status, self._meter.pace),
            NUM_BLOCKS: float(stats.num_blocks),
            NUM_HELD_BLOCKS: float(stats.num_blocks - stats.num_free_blocks),
            # Below 0 is no share: nothing has ended, or no latency is asked for.
            ATTAINMENT: sum(recent) / len(recent) if recent else -1.0,
        }

    def _see_end(self, entry: TokenEntry) -> None:
        line = entry.timeline
        if entry.finish_reason is None or line is None or line.first_token_at is None:
            return
        received_at = line.arrived_at if line.received_at is None else line.received_at
        is_met = not self._ttft_slo_s or line.first_token_at - received_at <= self._ttft_slo_s
        num_gaps = entry.index + len(entry.token_ids) - 1
        if self._tpot_slo_s and num_gaps > 0 and line.finished_at is not None:
            tpot_s = (line.finished_at - line.first_token_at) / num_gaps
            is_met = is_met and tpot_s <= self._tpot_slo_s
        self._recent.append(is_met)
