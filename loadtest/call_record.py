"""Keeps what was seen of one call: stamps at send and at each chunk, and how it ended."""

from array import array
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["finished", "failed", "cancelled", "unfinished"]


@dataclass(slots=True)
class CallRecord:
    """One call as the client saw it; every stamp is in monotonic seconds of this host.

    `scheduled_at` is when it ought to have been sent, `sent_at` when sending began (a new
    connection's hand-shake counts as the server's time), `queue_s` what it waited for a free
    place under --max-concurrency in between. `chunk_at` has a stamp per chunk that carried
    text; with several choices, `chunk_choice` says whose it was. Token counts come from the
    server's usage when it gives one (`has_usage`).
    """

    request_id: str
    session: str
    scheduled_at: float
    wanted_output_tokens: int | None
    prompt_tokens: int
    num_choices: int = 1
    sent_at: float = 0.0
    queue_s: float = 0.0
    chunk_at: "array[float]" = field(default_factory=lambda: array("d"))
    chunk_choice: "array[int]" = field(default_factory=lambda: array("H"))
    ended_at: float = 0.0
    output_tokens: int = 0
    cached_tokens: int = 0
    has_usage: bool = False
    outcome: Outcome = "unfinished"
    error_class: str = ""
    error: str = ""
    text: str = ""

    @property
    def ttft_s(self) -> float:
        """Sent to first text. Only for records with chunks."""
        return self.chunk_at[0] - self.sent_at

    @property
    def e2e_s(self) -> float:
        """Sent to last text."""
        return self.chunk_at[-1] - self.sent_at

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token of one choice after the first; None for a single token."""
        per_choice = self.output_tokens / self.num_choices
        if per_choice <= 1:
            return None
        return (self.chunk_at[-1] - self.chunk_at[0]) / (per_choice - 1)

    @property
    def lag_s(self) -> float:
        """How late the driver itself was, without any wait for a free place."""
        return self.sent_at - self.scheduled_at - self.queue_s

    def gaps_s(self) -> list[float]:
        """Times between neighbouring chunks of one choice (the inter-token latencies)."""
        last: dict[int, float] = {}
        gaps = []
        choices = self.chunk_choice if self.num_choices > 1 else bytes(len(self.chunk_at))
        for choice, at in zip(choices, self.chunk_at, strict=True):
            if choice in last:
                gaps.append(at - last[choice])
            last[choice] = at
        return gaps
