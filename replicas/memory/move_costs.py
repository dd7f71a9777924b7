"""Estimates what moving blocks would take and what computing them again would, as measured here.

Nothing is assumed of the machine: speeds come from the engine's own steps and from transfers that
were made (lecture 10, exercise 4). A speed that was never measured, or not for long, counts as
unlimited, so that its side is tried and thereby measured.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvstore.bandwidth_meter import BandwidthMeter
from kvstore.break_even import (
    Estimate,
    MeasuredSpeeds,
    PrefillCost,
    fetch_or_recompute,
    swap_or_recompute,
)
from replicas.memory.block_mover import StoreSpeeds
from replicas.memory.step_times import StepTimes

# A speed that nothing has confirmed for so long is measured anew.
FORGET_AFTER_S = 60.0
_UNLIMITED = float("inf")


@dataclass(frozen=True, slots=True)
class BlockCost:
    """What a block is made of: prefill operations by length, tokens and bytes of each block."""

    prefill: PrefillCost
    block_size: int
    block_bytes: int

    @property
    def bytes_per_token(self) -> int:
        """K and V of one token, rounded up."""
        return -(-self.block_bytes // self.block_size)


class MoveCosts:
    """Measured speeds of steps, of copies to and from host memory, and of the store.

    clock: monotonic seconds.
    """

    def __init__(self, cost: BlockCost, *, clock: Callable[[], float]) -> None:
        self._cost = cost
        self._clock = clock
        self._steps = StepTimes(clock=clock)
        self._copies = BandwidthMeter(clock=clock)
        self._store = StoreSpeeds()
        self._fetched_at = clock()

    @property
    def knows_prefill(self) -> bool:
        """Whether anything was computed here yet."""
        return self._steps.is_known

    @property
    def copy_bytes_per_s(self) -> float | None:
        """Between device and host memory, either way; None before the first copy."""
        return self._copies.bytes_per_s

    @property
    def round_trip_s(self) -> float:
        """Of a question to the store; 0 before the first."""
        return self._store.round_trip_s or 0.0

    def note_step(self, rows: Iterable[tuple[int, int]], *, seconds: float) -> None:
        """A step whose rows computed tokens `start` to `stop` of their requests."""
        prefill = self._cost.prefill
        flops = sum(prefill.flops(stop, num_cached_tokens=start) for start, stop in rows)
        self._steps.record(flops, seconds=seconds)

    def note_copies(self, num_blocks: int, *, seconds: float) -> None:
        """Blocks copied between device and host memory."""
        self._copies.record(num_blocks * self._cost.block_bytes, seconds=seconds)

    def note_store(self, speeds: StoreSpeeds, *, has_fetched: bool) -> None:
        """The mover's newest figures."""
        self._store = speeds
        if has_fetched:
            self._fetched_at = self._clock()

    def swap(self, num_tokens: int, *, num_kept_tokens: int) -> Estimate:
        """For a victim of which the first num_kept_tokens stay: out and back, or prefill again."""
        estimate = swap_or_recompute(
            num_tokens,
            num_kept_tokens=num_kept_tokens,
            kv_bytes_per_token=self._cost.bytes_per_token,
            cost=self._cost.prefill,
            speeds=self._speeds(self._copies.bytes_per_s, round_trip_s=0.0),
        )
        return self._with_fixed_part(estimate)

    def bring_back(self, num_tokens: int, *, num_cached_tokens: int) -> Estimate:
        """For blocks found in host memory: copy them in, or prefill."""
        return self._one_way(num_tokens, num_cached_tokens, self._copies.bytes_per_s, 0.0)

    def fetch(self, num_tokens: int, *, num_cached_tokens: int) -> Estimate:
        """For blocks found in the store: read and copy them in, or prefill."""
        speed = self._store.fetch_bytes_per_s
        if self._clock() - self._fetched_at > FORGET_AFTER_S:
            speed = None
        return self._one_way(num_tokens, num_cached_tokens, speed, self.round_trip_s)

    def recompute_s(self, num_tokens: int, *, num_cached_tokens: int) -> float:
        """A prefill of the tokens after the cached ones; 0 before anything was measured."""
        return self._one_way(num_tokens, num_cached_tokens, None, 0.0).recompute_s

    def _one_way(
        self, num_tokens: int, num_cached_tokens: int, speed: float | None, round_trip_s: float
    ) -> Estimate:
        estimate = fetch_or_recompute(
            num_tokens,
            num_cached_tokens=num_cached_tokens,
            kv_bytes_per_token=self._cost.bytes_per_token,
            cost=self._cost.prefill,
            speeds=self._speeds(speed, round_trip_s=round_trip_s),
        )
        return self._with_fixed_part(estimate)

    def _with_fixed_part(self, estimate: Estimate) -> Estimate:
        if not self._steps.is_known:
            return estimate
        return Estimate(estimate.move_s, estimate.recompute_s + self._steps.fixed_s())

    def _speeds(self, bytes_per_s: float | None, *, round_trip_s: float) -> MeasuredSpeeds:
        speed = bytes_per_s or _UNLIMITED
        return MeasuredSpeeds(
            prefill_flops_per_s=self._steps.rate() if self._steps.is_known else _UNLIMITED,
            out_bytes_per_s=speed,
            back_bytes_per_s=speed,
            round_trip_s=round_trip_s,
        )
