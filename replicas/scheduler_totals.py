"""Counts of what the scheduler has done since the engine started; they only grow."""

from dataclasses import dataclass

from replicas.request import FinishReason


@dataclass(slots=True)
class SchedulerTotals:
    """Tokens are counted once per choice; discarded ones were computed and lost by preemption.

    forks: choices that began with a sibling's blocks. copied_blocks: blocks that were copied since
    a request was about to write where another could still read. overtaking_prefills: requests that
    were computed between the layers of a step under way.
    """

    prompt_tokens: int = 0
    computed_prompt_tokens: int = 0
    hit_tokens: int = 0
    generated_tokens: int = 0
    discarded_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    cancelled: int = 0
    refused: int = 0
    low_watermark_steps: int = 0
    forks: int = 0
    copied_blocks: int = 0
    overtaking_prefills: int = 0

    def count_end(self, reason: FinishReason) -> None:
        """One choice ended."""
        if reason is FinishReason.CANCELLED:
            self.cancelled += 1
        elif reason is FinishReason.REFUSED:
            self.refused += 1
        else:
            self.finished += 1
