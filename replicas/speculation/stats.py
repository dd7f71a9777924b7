"""What speculation has tried and gained since the engine started, for metrics."""

from dataclasses import dataclass
from itertools import zip_longest


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Totals, as vLLM counts them.

    num_drafts_total: verifications of one request's guesses in one step. num_draft_tokens_total:
    the guesses. num_accepted_tokens_total: those that were right. accepted_per_position: of the
    latter, how many were first, second, ... guesses; empty without speculation.
    """

    num_drafts_total: int = 0
    num_draft_tokens_total: int = 0
    num_accepted_tokens_total: int = 0
    accepted_per_position: tuple[int, ...] = ()

    def after(self, earlier: "SpeculationStats") -> "SpeculationStats":
        """The totals of an engine that ended and of the one after it."""
        positions = zip_longest(
            self.accepted_per_position, earlier.accepted_per_position, fillvalue=0
        )
        return SpeculationStats(
            self.num_drafts_total + earlier.num_drafts_total,
            self.num_draft_tokens_total + earlier.num_draft_tokens_total,
            self.num_accepted_tokens_total + earlier.num_accepted_tokens_total,
            tuple(own + other for own, other in positions),
        )
