"""Stream: turns sampled tokens into entries for the outside, in order, and says when a choice ends.

Per-step latency is user-visible (lecture 10, 10.1), so whatever a step produced leaves with it.
"""

from collections.abc import Sequence

from replicas.batch import Sampled
from replicas.beam_group import Output
from replicas.handoff import HandoffNews
from replicas.request import EngineRequest, FinishReason, Refusal, TokenEntry, TokenLogprob
from replicas.request_state import RequestState


def end_of(
    request: RequestState, token_id: int, end_token_ids: frozenset[int]
) -> FinishReason | None:
    """Why a choice ends with the token it has just received, or None if it goes on."""
    sampling = request.origin.sampling
    is_end = token_id in end_token_ids and not sampling.ignore_eos
    if is_end or token_id in sampling.stop_token_ids:
        return FinishReason.STOP
    if len(request.tokens) >= request.max_known and not request.goes_on_elsewhere:
        return FinishReason.LENGTH
    return None


def logprob_of(sampled: Sampled, sample: int, num_logprobs: int | None) -> TokenLogprob | None:
    """What a request asked to hear of the `sample`-th sampled token; None if it did not ask."""
    if num_logprobs is None or sampled.logprobs is None:
        return None
    logprob = float(sampled.logprobs[sample])
    if not num_logprobs or sampled.top_ids is None or sampled.top_logprobs is None:
        return TokenLogprob(logprob)
    ids = sampled.top_ids[sample, :num_logprobs].tolist()
    logprobs = sampled.top_logprobs[sample, :num_logprobs].tolist()
    return TokenLogprob(logprob, tuple(zip(ids, logprobs, strict=True)))


class TokenStream:
    """The entries of the step under way; `drain` hands them over and starts the next step's."""

    def __init__(self) -> None:
        self._entries: list[TokenEntry] = []

    def admitted(self, request: EngineRequest) -> None:
        """The request waits for its first step, or goes on with nothing to tell yet."""
        self._entries.append(TokenEntry(request.request_id, request.attempt, choice=0, index=0))

    def refused(self, request: EngineRequest, refusal: Refusal) -> None:
        """The request was turned away."""
        self._entries.append(
            TokenEntry(
                request.request_id,
                request.attempt,
                choice=0,
                index=len(request.emitted_token_ids),
                finish_reason=FinishReason.REFUSED,
                refusal=refusal,
            )
        )

    def tokens(
        self,
        request: RequestState,
        token_ids: Sequence[int],
        end: FinishReason | None,
        logprobs: tuple[TokenLogprob, ...] = (),
    ) -> None:
        """A choice has tokens more; an end token, the last of them, is not part of its text."""
        is_stop = end is FinishReason.STOP
        num_before = request.num_output_tokens - len(token_ids)
        is_first = num_before == len(request.origin.emitted_token_ids)
        index = request.num_streamed
        shown = tuple(token_ids[:-1] if is_stop else token_ids)
        request.num_streamed += len(shown)
        self._entries.append(
            TokenEntry(
                request.origin.request_id,
                request.origin.attempt,
                request.choice,
                index,
                token_ids=shown,
                finish_reason=end,
                stop_token_id=token_ids[-1] if is_stop else None,
                num_cached_tokens=request.num_cached_tokens,
                timeline=request.timeline if is_first or end is not None else None,
                logprobs=logprobs,
            )
        )

    def output(self, request: RequestState, output: Output) -> None:
        """A choice of a search is known, from its first token to its end."""
        self._entries.append(
            TokenEntry(
                request.origin.request_id,
                request.origin.attempt,
                request.choice,
                0,
                token_ids=output.token_ids,
                finish_reason=output.reason,
                stop_token_id=output.stop_token_id,
                num_cached_tokens=request.num_cached_tokens,
                timeline=request.timeline,
                logprobs=output.logprobs,
            )
        )

    def handed(self, request: RequestState, news: HandoffNews) -> None:
        """A hand-off has come further, or has failed."""
        origin = request.origin
        self._entries.append(
            TokenEntry(
                origin.request_id,
                origin.attempt,
                request.choice,
                request.num_streamed,
                handoff=news,
            )
        )

    def ended(self, request: RequestState, reason: FinishReason) -> None:
        """A choice ended without another token."""
        self._entries.append(
            TokenEntry(
                request.origin.request_id,
                request.origin.attempt,
                request.choice,
                request.num_streamed,
                finish_reason=reason,
                num_cached_tokens=request.num_cached_tokens,
                timeline=request.timeline,
            )
        )

    def drain(self) -> tuple[TokenEntry, ...]:
        """Entries in the order in which they came about."""
        entries = tuple(self._entries)
        self._entries.clear()
        return entries
