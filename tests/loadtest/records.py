"""Makes call records with chosen stamps for tests of pure arithmetic."""

from array import array

from loadtest.call_record import CallRecord, Outcome


def record(
    *,
    sent_at: float = 0.0,
    ttft_s: float = 0.1,
    gap_s: float = 0.01,
    num_tokens: int = 11,
    outcome: Outcome = "finished",
    error_class: str = "",
    lag_s: float = 0.0,
) -> CallRecord:
    made = CallRecord("r", "", sent_at - lag_s, num_tokens, 100, sent_at=sent_at, outcome=outcome)
    made.error_class = error_class
    if outcome == "finished":
        first = sent_at + ttft_s
        made.chunk_at = array("d", [first + gap_s * i for i in range(num_tokens)])
        made.output_tokens = num_tokens
        made.ended_at = made.chunk_at[-1]
    else:
        made.ended_at = sent_at + ttft_s
    return made
