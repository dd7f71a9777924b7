"""Overtake: which prompts are computed between two layers of a step of outputs, one by one.

On a CPU a step of outputs takes tens of milliseconds. A prompt that comes in meanwhile need not
wait for its end, and one that fills the processor by itself costs little more apart than beside the
outputs, whose weights are read once more. Where two wait, the outputs' next step is begun
without them and lets them pass first: each has its first token when its own work is done, and the
outputs wait as long as for all in one step (what the prefill-first schedulers of vLLM before chunks
and of SGLang do, but within the token budget of one step).
"""

from collections.abc import Callable, Iterable, Sequence

from replicas.config import SchedulerConfig
from replicas.memory.request_memory import FoundPrefix
from replicas.request_state import RequestState
from replicas.step_in_flight import StepInFlight
from replicas.step_plan import PlannedStep, StepPlan

Match = Callable[[RequestState], FoundPrefix]

# An output that may have no more tokens is not made to wait for prompts that pass: of so few, each
# counts. Chosen by the computed table in docs/performance.md.
BRIEF_OUTPUT_TOKENS = 8
# Where more requests wait, the machine is behind, and prompts that pass cost more than they gain:
# by themselves they take longer than beside outputs.
MOST_WAITING = 2


class Overtaking:
    """Decides who may pass which step.

    is_deferring: the step planned last left prompts out that shall pass it.
    """

    def __init__(self, config: SchedulerConfig, *, can_pause: bool) -> None:
        self._block_size = config.block_size
        self._most_tokens = config.max_num_batched_tokens
        self._least_tokens = config.max_prefill_tokens
        self._is_on = can_pause and config.prefill_overtakes_decode and self._least_tokens > 0
        self.is_deferring = False

    def defers(self, plan: StepPlan, line: Sequence[RequestState], match: Match) -> bool:
        """Whether the waiting requests had better pass the step of this plan than come in with it.

        Never twice in a row: they might have come too late, or not fit in.
        """
        self.is_deferring = (
            self._is_on
            and not self.is_deferring
            and len(plan) > 0
            and plan.num_prefill_tokens == 0
            and not any(is_brief(request) for request, _ in plan.rows())
            and 1 < len(line) <= MOST_WAITING
            and all(self._can_pass(request, match(request), frozenset()) for request in line)
        )
        return self.is_deferring

    def budget(
        self, under_way: StepInFlight, running: Iterable[RequestState], *, num_waiting: int
    ) -> int:
        """Tokens of prompts that may still pass; less than one prompt's worth is 0.

        A step is passed if it computes outputs alone, none of which has ended since it was planned:
        rows of ended requests still write to blocks that may be somebody else's by now. Nobody
        passes a running prompt that goes on in the next step, or an output that is brief.
        """
        planned = under_way.planned
        if (
            not self._is_on
            or not 0 < num_waiting <= MOST_WAITING
            or not planned.has_outputs_alone
            or not all(request.is_running for request in planned.requests)
            or any(is_brief(request) for request in planned.requests)
            or any(request.num_missing > 1 for request in running)
        ):
            return 0
        return self._enough(self._most_tokens - under_way.num_passing_tokens)

    def next_plan(self, budget: int) -> StepPlan | None:
        """For the next prompt, within what the others have left; None if that is not enough."""
        return StepPlan(budget, self._least_tokens) if self._enough(budget) else None

    def admission_past(self, planned: PlannedStep) -> Callable[[RequestState, FoundPrefix], bool]:
        """Tells of a waiting request and its prefix whether it needs nothing of this step."""
        written = frozenset((planned.batch.slot_mapping // self._block_size).tolist())
        return lambda request, found: self._can_pass(request, found, written)

    def _enough(self, budget: int) -> int:
        return budget if budget >= self._least_tokens else 0

    def _can_pass(self, request: RequestState, found: FoundPrefix, written: frozenset[int]) -> bool:
        # What comes from another engine has little to compute.
        return (
            len(request.tokens) - found.num_tokens >= self._least_tokens
            and request.origin.handoff is None
            and found.source is None
            and written.isdisjoint(found.blocks)
        )


def is_brief(request: RequestState) -> bool:
    """Whether all that the client lets it have is a few tokens."""
    return request.max_known - request.num_prompt_tokens <= BRIEF_OUTPUT_TOKENS
