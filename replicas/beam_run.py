"""Carries a beam search through the engine: each beam is one choice of the request as it runs.

A beam that branches is forked, so its branches share all blocks but the one they write to; a beam
that has no branch is parked and gives everything back until another one needs a carrier (copy on
write, lecture 10, 10.4).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from replicas.batch import Sampled
from replicas.batch_scheduler import BatchScheduler
from replicas.beam_group import BeamGroup, Output, num_candidates
from replicas.request import EngineRequest
from replicas.request_state import RequestState
from replicas.token_stream import logprob_of


def with_candidates(request: EngineRequest, end_token_ids: frozenset[int]) -> EngineRequest:
    """The request as it runs: greedy, every step with the log probabilities that a search needs."""
    ends = _ends_of(request, end_token_ids)
    sampling = replace(
        request.sampling,
        num_logprobs=num_candidates(request.num_choices, ends),
        temperature=0.0,
        # The next token is chosen when all beams are known; min_tokens is the search's to keep.
        needs_last_token=True,
        min_tokens=0,
    )
    return replace(request, sampling=sampling)


def _ends_of(request: EngineRequest, end_token_ids: frozenset[int]) -> frozenset[int]:
    own = frozenset(request.sampling.stop_token_ids)
    return own if request.sampling.ignore_eos else own | end_token_ids


@dataclass(slots=True)
class _Carrier:
    """The choice that carries a beam, and what its last step found likely."""

    choice: RequestState
    likeliest: Sequence[tuple[int, float]] | None = None


class BeamRun:
    """One request's search. asked: the request as it came; choices: its carriers, all but the
    first of them parked."""

    def __init__(
        self,
        asked: EngineRequest,
        choices: Sequence[RequestState],
        end_token_ids: frozenset[int],
    ) -> None:
        params = asked.sampling
        assert params.beam is not None
        self._group = BeamGroup(
            params.beam,
            width=asked.num_choices,
            end_token_ids=_ends_of(asked, end_token_ids),
            max_tokens=choices[0].max_known - choices[0].num_prompt_tokens,
            min_tokens=params.min_tokens,
            num_shown=params.num_logprobs,
        )
        self._parked = list(choices[1:])
        self._carriers = [_Carrier(choices[0])]

    @property
    def outputs(self) -> tuple[Output, ...] | None:
        """What was found, the best first; None while the search goes on."""
        return None if self._carriers else self._group.outputs

    def note(self, choice: RequestState, sampled: Sampled, sample: int) -> bool:
        """A beam's step was computed; whether that was the last one to wait for."""
        found = logprob_of(sampled, sample, choice.sampling.num_logprobs)
        assert found is not None, "a beam's step came without log probabilities"
        (carrier,) = (one for one in self._carriers if one.choice is choice)
        carrier.likeliest = found.top
        choice.is_held = True
        return all(one.likeliest is not None for one in self._carriers)

    def advance(self, scheduler: BatchScheduler, now: float) -> None:
        """Let the beams branch, and hand their blocks on."""
        likeliest = [one.likeliest for one in self._carriers if one.likeliest is not None]
        branches = self._group.advance(likeliest)
        num_branches = Counter(branch.parent for branch in branches)
        for index, carrier in enumerate(self._carriers):
            if not num_branches[index]:
                scheduler.park(carrier.choice)
                self._parked.append(carrier.choice)
        taken: set[int] = set()
        carriers: list[_Carrier] = []
        # All forks come before the first token is appended: they start where the parent stands.
        for branch in branches:
            parent = self._carriers[branch.parent].choice
            choice = parent
            if branch.parent in taken:
                choice = self._parked.pop()
                scheduler.fork(choice, parent, now)
            taken.add(branch.parent)
            carriers.append(_Carrier(choice))
        for carrier, branch in zip(carriers, branches, strict=True):
            carrier.choice.is_held = False
            scheduler.append_token(carrier.choice, branch.token_id)
        self._carriers = carriers
