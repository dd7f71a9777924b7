"""Which running request gives up its blocks when there are none left.

The one that loses least: the fewest computed tokens that could not be had back from blocks which
others hold as well; among equals the newest (lecture 11, 11.5: least accumulated work).
"""

from collections.abc import Callable, Iterable

from replicas.request_state import RequestState


def choose_victim(
    running: Iterable[RequestState],
    *,
    block_size: int,
    is_shared: Callable[[int], bool],
    max_preemptions: int,
) -> RequestState:
    """The request to preempt, of at least one that runs, in order of admission.

    A request that has been preempted `max_preemptions` times is spared while there is another.
    """
    candidates = [request for request in running if request.blocks]
    tired = [request for request in candidates if request.num_preemptions >= max_preemptions]
    if len(tired) < len(candidates):
        candidates = [request for request in candidates if request not in tired]

    def loss(indexed: tuple[int, RequestState]) -> tuple[int, int]:
        index, request = indexed
        return lost_tokens(request, block_size, is_shared), -index

    return min(enumerate(candidates), key=loss)[1]


def lost_tokens(request: RequestState, block_size: int, is_shared: Callable[[int], bool]) -> int:
    """Computed tokens that are gone once its own blocks are."""
    num_kept = 0
    for block in request.blocks:
        if not is_shared(block):
            break
        num_kept += block_size
    return max(0, request.num_planned - num_kept)
