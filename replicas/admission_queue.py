"""Admit: take requests into a bounded waiting line, or refuse them at once with a reason.

Admitting is the one thing an engine cannot take back (lecture 10, 10.1), so whatever can never be
served is refused here, before anything was computed.
"""

from collections.abc import Iterator, Sequence

from replicas.block_table import num_blocks_for
from replicas.config import SchedulerConfig
from replicas.policies import WaitingOrder
from replicas.request import EngineRequest, Refusal, RefusalReason
from replicas.request_state import RequestState

MIN_RETRY_AFTER_S = 1.0


class AdmissionQueue:
    """The waiting line: bounded in requests and tokens, ordered by a policy, with deadlines."""

    def __init__(self, config: SchedulerConfig, order: WaitingOrder) -> None:
        self._config = config
        self._order = order
        self._line: list[RequestState] = []
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._line)

    @property
    def num_tokens(self) -> int:
        """Known tokens of all waiting requests."""
        return self._num_tokens

    def admit(
        self,
        request: EngineRequest,
        *,
        now: float,
        tokens_per_s: float,
        received_at: float | None = None,
    ) -> list[RequestState] | Refusal:
        """Its choices, which now wait; or why not.

        tokens_per_s: how fast the engine has been working, for the time to retry after.
        received_at: when the request came in, if that was before the step boundary `now`.
        """
        refusal = self._why_not(request, tokens_per_s)
        if refusal is not None:
            return refusal
        choices = [
            RequestState(
                request,
                choice=choice,
                arrived_at=now,
                max_model_len=self._config.max_model_len,
                received_at=now if received_at is None else received_at,
            )
            for choice in range(request.num_choices)
        ]
        for state in choices:
            state.siblings = choices if len(choices) > 1 else ()
            # A search begins with one beam, from which the others branch.
            if request.sampling.beam is not None and state.choice:
                state.is_parked = True
            else:
                self._append(state)
        return choices

    def readmit(self, request: RequestState) -> None:
        """Take back a preempted request."""
        # Bounds are not checked: this request was already promised a place.
        self._append(request)

    def remove(self, request: RequestState) -> None:
        """The request leaves the line: it runs now, or it ended."""
        self._line.remove(request)
        self._num_tokens -= len(request.tokens)

    def note_token(self) -> None:
        """A waiting request learned a token: it was preempted while a batch still sampled it."""
        self._num_tokens += 1

    def in_order(self, now: float) -> Sequence[RequestState]:
        """The line as the policy wants it considered."""
        return sorted(self._line, key=lambda request: self._order.rank(request, now))

    def expired(self, now: float) -> list[RequestState]:
        """Requests that never ran and have waited longer than they allow."""
        return [
            request
            for request in self._line
            if request.origin.queue_timeout_s is not None
            and request.timeline.scheduled_at is None
            and now - request.arrived_at > request.origin.queue_timeout_s
        ]

    def check(self) -> None:
        """Assert that the token count is that of the line and that nobody in it holds memory."""
        assert self._num_tokens == sum(len(request.tokens) for request in self._line)
        for request in self._line:
            assert request.slot is None, "a waiting request has a slot"
            assert not request.blocks, "a waiting request holds blocks"

    def _append(self, request: RequestState) -> None:
        self._line.append(request)
        self._num_tokens += len(request.tokens)

    def _why_not(self, request: EngineRequest, tokens_per_s: float) -> Refusal | None:
        config = self._config
        num_known = len(request.prompt_token_ids) + len(request.emitted_token_ids)
        if num_known >= config.max_model_len:
            return Refusal(
                RefusalReason.PROMPT_TOO_LONG,
                f"the prompt has {num_known} tokens; this model's context holds "
                f"{config.max_model_len}, output included",
            )
        needed = num_blocks_for(num_known + 1, config.block_size)
        if needed > config.num_blocks:
            return Refusal(
                RefusalReason.NEVER_FITS,
                f"the prompt needs {needed} KV blocks; this replica has {config.num_blocks}",
            )
        return self._line_full(request.num_choices, num_known, tokens_per_s)

    def _line_full(self, num_choices: int, num_known: int, tokens_per_s: float) -> Refusal | None:
        num_requests = len(self._line) + num_choices
        num_tokens = self._num_tokens + num_choices * num_known
        # A single request larger than the bound is let in when the line is empty: it would
        # otherwise be told to come back for ever.
        if not self._line or (
            num_requests <= self._config.max_num_queued_reqs
            and num_tokens <= self._config.max_num_queued_tokens
        ):
            return None
        backlog_s = self._num_tokens / tokens_per_s if tokens_per_s > 0 else 0.0
        return Refusal(
            RefusalReason.QUEUE_FULL,
            f"{len(self._line)} requests with {self._num_tokens} tokens are waiting already",
            retry_after_s=max(MIN_RETRY_AFTER_S, backlog_s),
        )
