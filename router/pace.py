"""Measures how fast a replica computes, from the steps that it reports, so nobody configures it.

A decode step costs a base and a little for each row, a prefill a time for each token (lecture 10,
10.6). Both are fitted to reported steps; old ones are forgotten, since a neighbour's load, a longer
context or another clock rate change them.
"""

from dataclasses import dataclass

_KEPT = 0.98
# Below this many weighted steps a slope is mostly noise; their mean is not.
_MIN_WEIGHT_OF_SLOPE = 8.0
# A step that took this many times what was expected was held up: by a first use, by a machine that
# was busy for a moment. It counts for no more, and a slower replica is believed after some steps.
# Nothing makes a step quicker than it is, so one that took as much less proves the estimate wrong.
_MAX_SURPRISE = 4.0
# Prefill may seem to take all of the time for a while; dividing by what is left must stay sane.
_MAX_PREFILL_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class StepSample:
    """One engine step. step: its number, which tells a new one from one already seen.

    num_decode_tokens: rows that decoded. run_s: how long it computed.
    """

    step: int
    num_prefill_tokens: int
    num_decode_tokens: int
    run_s: float


@dataclass(frozen=True, slots=True)
class Pace:
    """What a replica was measured to need; 0.0 where nothing was measured yet.

    decode_base_s, decode_row_s: a decode step takes base + row * rows. prefill_token_s: what a
    prompt token adds. prefill_share: share of the time that prefills take from decodes, in [0, 1).
    mean_output_tokens: output tokens of a finished request.
    """

    decode_base_s: float = 0.0
    decode_row_s: float = 0.0
    prefill_token_s: float = 0.0
    prefill_share: float = 0.0
    mean_output_tokens: float = 0.0

    @property
    def is_measured(self) -> bool:
        """Whether both prefill and decode were seen."""
        return self.prefill_token_s > 0.0 and self.decode_base_s + self.decode_row_s > 0.0

    def decode_step_s(self, num_rows: float) -> float:
        """Seconds of a step that decodes so many rows."""
        return self.decode_base_s + self.decode_row_s * num_rows


class _DecodeFit:
    """A line through (rows, seconds) of decode steps, by least squares with forgetting."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._weight = self._rows = self._squares = 0.0
        self._seconds = self._products = 0.0

    def see(self, num_rows: int, seconds: float) -> None:
        """Take in a step that only decoded."""
        base_s, row_s = self.line()
        expected_s = base_s + row_s * num_rows
        if seconds < expected_s / _MAX_SURPRISE:
            self._forget()
        elif self._weight >= _MIN_WEIGHT_OF_SLOPE:
            seconds = min(seconds, _MAX_SURPRISE * expected_s)
        self._weight = self._weight * _KEPT + 1.0
        self._rows = self._rows * _KEPT + num_rows
        self._squares = self._squares * _KEPT + num_rows * num_rows
        self._seconds = self._seconds * _KEPT + seconds
        self._products = self._products * _KEPT + num_rows * seconds

    def line(self) -> tuple[float, float]:
        """Base and slope, neither below 0; a flat line while there is too little to see one."""
        if not self._weight:
            return 0.0, 0.0
        mean_s = self._seconds / self._weight
        spread = self._squares - self._rows * self._rows / self._weight
        if self._weight < _MIN_WEIGHT_OF_SLOPE or spread <= 0.05 * self._squares:
            return mean_s, 0.0
        slope = (self._products - self._rows * mean_s) / spread
        slope = min(max(slope, 0.0), self._seconds / self._rows)
        return mean_s - slope * self._rows / self._weight, slope


class PaceMeter:
    """One replica's pace from its steps and totals, with exponential forgetting."""

    def __init__(self) -> None:
        self._last_step = -1
        self._decode = _DecodeFit()
        self._prefill_tokens = self._prefill_s = 0.0
        self._shared_prefill_s = self._shared_s = 0.0
        self._totals: tuple[int, int] | None = None
        self._finished = self._generated = 0.0
        self._pace = Pace()

    @property
    def pace(self) -> Pace:
        """What the steps so far make of it."""
        return self._pace

    def see(self, sample: StepSample, *, finished_total: int, generated_total: int) -> None:
        """Take in a step; one that was seen already counts once."""
        if sample.step == self._last_step or sample.run_s <= 0.0:
            return
        self._last_step = sample.step
        prefill_s = 0.0
        if sample.num_prefill_tokens:
            prefill_s = self._see_prefill(sample)
        elif sample.num_decode_tokens:
            self._decode.see(sample.num_decode_tokens, sample.run_s)
        if sample.num_decode_tokens:
            self._shared_s = self._shared_s * _KEPT + sample.run_s
            self._shared_prefill_s = self._shared_prefill_s * _KEPT + prefill_s
        self._see_outputs(finished_total, generated_total)
        self._pace = self._fit()

    def _see_prefill(self, sample: StepSample) -> float:
        """What prefill took of a step: all of it but what its decode rows take alone."""
        decode_s = 0.0
        if sample.num_decode_tokens:
            base_s, row_s = self._decode.line()
            decode_s = min(base_s + row_s * sample.num_decode_tokens, 0.9 * sample.run_s)
        prefill_s = self._plausible_s(sample.run_s - decode_s, sample)
        # Forgetting goes by tokens, so a chunk of one token does not push out a thousand.
        kept = _KEPT ** min(1.0, sample.num_prefill_tokens / 64)
        self._prefill_tokens = self._prefill_tokens * kept + sample.num_prefill_tokens
        self._prefill_s = self._prefill_s * kept + prefill_s
        return prefill_s

    def _plausible_s(self, prefill_s: float, sample: StepSample) -> float:
        """As much of it as is not a surprise; forgets what it proves to be wrong."""
        if not self._prefill_tokens:
            return prefill_s
        expected_s = sample.num_prefill_tokens * self._prefill_s / self._prefill_tokens
        # Of a step that mostly decoded, what is left for the prefill is too uncertain to prove it.
        if prefill_s < expected_s / _MAX_SURPRISE and prefill_s >= sample.run_s / 2:
            self._prefill_tokens = self._prefill_s = 0.0
        return min(prefill_s, _MAX_SURPRISE * expected_s)

    def _see_outputs(self, finished_total: int, generated_total: int) -> None:
        earlier, self._totals = self._totals, (finished_total, generated_total)
        if earlier is None or finished_total <= earlier[0]:
            if earlier is not None and finished_total == earlier[0]:
                self._totals = earlier
            return
        num_finished = finished_total - earlier[0]
        kept = _KEPT**num_finished
        self._finished = self._finished * kept + num_finished
        self._generated = self._generated * kept + max(0, generated_total - earlier[1])

    def _fit(self) -> Pace:
        base_s, row_s = self._decode.line()
        share = self._shared_prefill_s / self._shared_s if self._shared_s else 0.0
        return Pace(
            decode_base_s=base_s,
            decode_row_s=row_s,
            prefill_token_s=(
                self._prefill_s / self._prefill_tokens if self._prefill_tokens else 0.0
            ),
            prefill_share=min(share, _MAX_PREFILL_SHARE),
            mean_output_tokens=self._generated / self._finished if self._finished else 0.0,
        )


def mean_pace(paces: list[Pace]) -> Pace:
    """What to expect of a replica that was not measured yet: the mean of those that were."""
    measured = [pace for pace in paces if pace.is_measured]
    if not measured:
        return Pace()
    count = len(measured)
    return Pace(
        decode_base_s=sum(pace.decode_base_s for pace in measured) / count,
        decode_row_s=sum(pace.decode_row_s for pace in measured) / count,
        prefill_token_s=sum(pace.prefill_token_s for pace in measured) / count,
        prefill_share=0.0,
        mean_output_tokens=sum(pace.mean_output_tokens for pace in measured) / count,
    )
