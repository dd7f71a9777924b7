"""Puts guesses into a step that is otherwise planned."""

from replicas.memory.request_memory import RequestMemory
from replicas.request_state import RequestState
from replicas.speculation.speculation import Speculation
from replicas.step_plan import StepPlan


def plan_guesses(plan: StepPlan, speculation: Speculation, memory: RequestMemory) -> None:
    """Guesses take what budget and blocks the others have left, and nobody's place."""
    if not speculation.is_on:
        return
    requests = [each for each, count in plan.rows() if count == 1 and _may_guess(each)]
    depths = speculation.depths(requests, num_tokens=plan.num_tokens, most=plan.budget_left)
    if speculation.must_wait(depths):
        plan.decides_next = True
        return
    for request, depth in tuple(depths.items()):
        if memory.has_spare_room(request, 1 + depth):
            memory.grow(request, 1 + depth)
        else:
            del depths[request]
    if not depths:
        return
    drafts = speculation.draft(depths)
    for request in depths:
        if request in drafts:
            plan.guess(request, drafts[request])
        else:
            memory.shrink(request, 1)


def _may_guess(request: RequestState) -> bool:
    """Whether its row's token is the last one that is known or coming, and nobody shares its tail.

    Whose next token depends on more than the tokens before it (a mask, a search) cannot have
    several sampled at once.
    """
    return (
        request.num_missing == 1
        and request.num_unresolved <= 1
        and not request.has_shared_tail
        and not request.origin.sampling.needs_last_token
    )
