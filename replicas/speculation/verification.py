"""Says which guesses a step has confirmed.

A token's random number follows from seed, choice and position alone (DESIGN 3), so a step that
samples after each guess finds the tokens that plain decoding would have found one by one, as long
as every guess before was right. The longest right beginning is accepted, and then the token that
was sampled after it: the output is the same token for token, greedy or sampled, where rejection
sampling (Leviathan et al. 2023) keeps only its distribution.
"""

from collections.abc import Sequence


def num_confirmed(guesses: Sequence[int], sampled: Sequence[int]) -> int:
    """How many of the first guesses equal what was sampled in their places."""
    for index, (guess, token) in enumerate(zip(guesses, sampled, strict=False)):
        if guess != token:
            return index
    return min(len(guesses), len(sampled))
