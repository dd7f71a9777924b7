"""Chooses how many guesses of each request a step verifies: as many as make the engine faster.

A guess that is right with chance c adds c tokens to what the step gives, and its row to what the
step takes. The likeliest come first, and as many of them are taken as give the most tokens a
second (as SmartSpec maximises goodput; Liu et al. 2024). A step that is full already, and takes
longer with each row, gets none.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# A step with guesses must promise this much more than one without: estimates are no better.
LEAST_GAIN = 1.03
# Guesses less likely than this are not worth a thought.
LEAST_CHANCE = 0.05


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds. of_step: of a step with so many tokens.

    overhead_s: what a step costs that leaves the next one unplanned until its tokens are known.
    pass_s: what it takes to guess one token further, for all requests together.
    """

    of_step: Callable[[int], float]
    overhead_s: float = 0.0
    pass_s: float = 0.0


def choose_depths(
    chances: Sequence[Sequence[float]], *, num_tokens: int, most: int, costs: StepCosts
) -> list[int]:
    """For each request, how many of its guesses are verified; its first ones.

    chances: for each request, that all its guesses up to this one are right, so never rising.
    num_tokens: of the step without guesses, each of them wanted. most: guesses that still fit in.
    """
    ranked = _likeliest(chances, most)
    best = num_tokens / costs.of_step(num_tokens) * LEAST_GAIN
    num_chosen = 0
    gained = 0.0
    depths = [0] * len(chances)
    for num_guesses, (chance, request) in enumerate(ranked, start=1):
        gained += chance
        depths[request] += 1
        taken_s = costs.of_step(num_tokens + num_guesses) + costs.overhead_s
        rate = (num_tokens + gained) / (taken_s + costs.pass_s * max(depths))
        if rate > best:
            best, num_chosen = rate, num_guesses
    for _chance, request in ranked[num_chosen:]:
        depths[request] -= 1
    return depths


def _likeliest(chances: Sequence[Sequence[float]], most: int) -> list[tuple[float, int]]:
    """(chance, request) of the `most` likeliest guesses, the likeliest first."""
    every = (
        (chance, request)
        for request, own in enumerate(chances)
        for chance in own
        if chance >= LEAST_CHANCE
    )
    return heapq.nlargest(most, every, key=lambda each: each[0])
