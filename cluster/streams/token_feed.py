"""One request's tokens at its gateway: filled by the replica's stream, read by one HTTP response.

A reader slower than the engine finds several steps of a choice joined in one entry, so a feed
holds at most one entry for each choice and no more tokens than the request may have.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from cluster.errors import DispatchError, ReplicaLost, RequestRefused
from cluster.streams.token_outbox import join_entries
from replicas.request import EngineRequest, FinishReason, TokenEntry

# Ends that no client asked for: the engine broke, or the replica gave the request up.
_FAILED_ENDS = (FinishReason.ERROR, FinishReason.CANCELLED)


class NotAccepted(DispatchError):
    """The chosen replica did not take the request; another one may."""


class StreamFeed:
    """The TokenFeed of one attempt.

    replica_id: where the attempt runs. on_finish_choice: tells the replica that a choice ended
    early. on_close: called once, when the reader leaves or everything has ended; its argument says
    whether the request should be let run to its end, since all that is left of it was asked to end
    already.
    """

    def __init__(
        self,
        request: EngineRequest,
        *,
        on_finish_choice: Callable[[int], None],
        on_close: Callable[[bool], None],
        replica_id: str = "",
    ) -> None:
        self.request = request
        self.replica_id = replica_id
        self.admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_finish_choice = on_finish_choice
        self._on_close = on_close
        self._pending: dict[int, TokenEntry] = {}
        self._running = set(range(request.num_choices))
        self._finishing: set[int] = set()
        self._error: DispatchError | None = None
        self._wake = asyncio.Event()
        self._is_closed = False

    @property
    def has_ended(self) -> bool:
        """Whether no entry will come any more."""
        return not self._running or self._error is not None

    def push(self, entry: TokenEntry) -> None:
        """Take in an entry of this request and attempt.

        One without tokens is passed on too, but for the first, which is the admission: a beam
        search shows with it that it lives.
        """
        if self.has_ended or self._is_closed:
            return
        if entry.finish_reason in _FAILED_ENDS:
            self.fail(ReplicaLost("The engine stopped while it worked on the request."))
            return
        was_admitted = self.admitted.done()
        if not was_admitted:
            if entry.refusal is not None:
                self.fail(RequestRefused(entry.refusal))
                return
            self.admitted.set_result(None)
        if entry.refusal is not None:
            self._running.clear()
        elif entry.finish_reason is not None:
            self._running.discard(entry.choice)
        elif not entry.token_ids and entry.handoff is None and not was_admitted:
            return
        earlier = self._pending.get(entry.choice)
        self._pending[entry.choice] = entry if earlier is None else join_entries(earlier, entry)
        self._wake.set()

    def fail(self, error: DispatchError) -> None:
        """The request ends with an error, unless it has ended already."""
        if self.has_ended:
            return
        self._error = error
        if not self.admitted.done():
            self.admitted.set_exception(error)
            # An opener that was cancelled meanwhile does not ask any more.
            self.admitted.exception()
        self._wake.set()

    def __aiter__(self) -> AsyncIterator[TokenEntry]:
        return self._entries()

    def finish_choice(self, choice: int) -> None:
        """End one choice early because the gateway found a stop string in its text."""
        if choice in self._running and choice not in self._finishing and not self._is_closed:
            self._finishing.add(choice)
            self._on_finish_choice(choice)

    def repeat_finishes(self) -> None:
        """Ask again for the ends that have not come; a broken stream may have swallowed the asking.

        A second one of the same choice changes nothing.
        """
        if self._error is None:
            for choice in sorted(self._running & self._finishing):
                self._on_finish_choice(choice)

    async def close(self) -> None:
        """Leave: whatever still runs is cancelled. Safe to call twice and after the end."""
        if self._is_closed:
            return
        self._is_closed = True
        self._pending.clear()
        self._wake.set()
        self._on_close(self._error is None and self._running <= self._finishing)

    async def _entries(self) -> AsyncIterator[TokenEntry]:
        while True:
            while self._pending:
                yield self._pending.pop(next(iter(self._pending)))
            if self._error is not None:
                raise self._error
            if not self._running or self._is_closed:
                return
            self._wake.clear()
            await self._wake.wait()
