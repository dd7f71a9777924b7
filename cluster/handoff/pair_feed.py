"""One request's tokens while two replicas share it: the first from prefill, the rest from decode.

The decisions are router.handoff's; here they are carried out with the feeds of both attempts. The
client sees one list of tokens. A replica that is lost on the prefill side costs a prefill; one that
is lost on the decode side ends this feed, and cluster.dispatch.failover_dispatcher goes on
elsewhere.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace

from cluster.dispatch.serve_dispatcher import ServeDispatcher
from cluster.errors import DispatchError, ReplicaLost
from cluster.handoff.decode_places import DecodePlace, DecodePlaces
from cluster.streams.token_feed import StreamFeed
from replicas.handoff import HandoffIn, HandoffNews
from replicas.request import EngineRequest, FinishReason, Timeline, TokenEntry
from router.handoff import (
    Adopt,
    Command,
    DecodeLocally,
    DropTable,
    Handoff,
    HandoffState,
    Withdraw,
)
from router.replica_status import DECODERS

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HandoffResult:
    """What came of one hand-off: adopted, or why the decode side computes the prompt.

    replica_id: of the decode side; empty where there was none. exposed_s: seconds from the first
    token until the blocks were adopted; None unless they were. num_bytes: of K and V that
    travelled. transport: what carried them.
    """

    outcome: str
    replica_id: str = ""
    exposed_s: float | None = None
    num_bytes: int = 0
    transport: str = ""


@dataclass(frozen=True, slots=True)
class Pairing:
    """What every pair of one gateway works with.

    decode_attempt: number of the second attempt. drivers: where their tasks are kept.
    """

    attempts: ServeDispatcher
    places: DecodePlaces
    clock: Callable[[], float]
    note: Callable[[HandoffResult], None]
    adopt_timeout_s: float
    decode_attempt: int
    drivers: set[asyncio.Task[None]]


class PairFeed:
    """The AttemptFeed of a request that is handed over.

    It goes on whether it is read or not, since it holds room on both sides: a client that reads
    slowly must not keep that.
    """

    def __init__(
        self,
        request: EngineRequest,
        handoff: Handoff,
        place: DecodePlace,
        prefill: StreamFeed,
        pairing: Pairing,
    ) -> None:
        self._request = request
        self._handoff = handoff
        self._place = place
        self._prefill: StreamFeed | None = prefill
        self._decode: StreamFeed | None = None
        self._pairing = pairing
        self._prefill_id = prefill.replica_id
        self._emitted = request.emitted_token_ids
        self._first_token_at: float | None = None
        self._first_timeline: Timeline | None = None
        self._second_at: float | None = None
        self._is_finishing = False
        self._is_expected = True
        self._shown = StreamFeed(
            request,
            on_finish_choice=self._finish_choice,
            on_close=self._stop,
        )
        self._driver = asyncio.create_task(self._drive(), name=f"pair {request.request_id}")
        pairing.drivers.add(self._driver)
        self._driver.add_done_callback(pairing.drivers.discard)

    @property
    def replica_id(self) -> str:
        """Where the request is now."""
        return self._decode.replica_id if self._decode is not None else self._prefill_id

    @property
    def has_ended(self) -> bool:
        """Whether no entry will come any more."""
        return self._shown.has_ended

    def fail(self, error: DispatchError) -> None:
        """Give up the replica that works on it now; the decode side can do without the other."""
        current = self._decode or self._prefill
        if current is not None:
            current.fail(error)

    def __aiter__(self) -> AsyncIterator[TokenEntry]:
        return aiter(self._shown)

    def finish_choice(self, choice: int) -> None:
        """End the choice early because the gateway found a stop string in its text."""
        self._shown.finish_choice(choice)

    async def close(self) -> None:
        """Leave: nothing stays behind on either side or in the store. Safe to call twice."""
        # Nothing here may suspend: whoever closes may itself be cancelled as soon as it does, since
        # its client has all it wanted. The driver ends in its own time.
        await self._shown.close()
        await self._clean_up()

    def _stop(self, _may_end: bool) -> None:
        self._driver.cancel()

    def _finish_choice(self, choice: int) -> None:
        self._is_finishing = True
        current = self._decode or self._prefill
        if current is not None:
            current.finish_choice(choice)

    async def _drive(self) -> None:
        """Prompt, then output; whatever happens, nothing stays behind."""
        try:
            if not await self._prompt():
                await self._output()
        except DispatchError as error:
            self._shown.fail(error)
        except Exception:  # a fault of ours must end the stream, not leave its reader waiting
            log.exception("hand-off failed request=%s", self._request.request_id)
            self._shown.fail(ReplicaLost("The request could not be handed over."))
        finally:
            await self._clean_up()

    async def _clean_up(self) -> None:
        await self._do(self._handoff.on_client_gone())
        await self._close_prefill()
        self._take_promise_back()
        if self._decode is not None:
            await self._decode.close()
        self._pairing.places.give_back(self._place)

    def _take_promise_back(self) -> None:
        """Once: the next attempt of this request may be promised room there again."""
        promised_id = self._place.replica_id
        if self._is_expected and (self._decode is None or self._decode.replica_id != promised_id):
            self._pairing.attempts.forget_handoff(promised_id, self._request.request_id)
        self._is_expected = False

    async def _prompt(self) -> bool:
        """The first token; then the hand-off is published, or the decode side goes local.

        True if the request has ended with it.
        """
        handoff, clock = self._handoff, self._pairing.clock
        deadline_at = handoff.deadline_at
        assert deadline_at is not None, handoff.state
        try:
            async with asyncio.timeout(max(0.0, deadline_at - clock())):
                news = await self._read_prompt()
        except TimeoutError:
            await self._do(handoff.on_tick(max(clock(), deadline_at)))
            return False
        except DispatchError as error:
            log.info("prefill lost request=%s error=%s", self._request.request_id, error)
            await self._do(handoff.on_replica_gone(self._prefill_id, clock()))
            return False
        if self._shown.has_ended:
            return True
        if news is not None and news.outcome == "published":
            await self._do(handoff.on_prefilled(news.generation, clock()))
        else:
            reason = "prefill_withdrawn" if news is None else news.outcome
            await self._do(handoff.on_prefill_failed(handoff.generation, reason))
        return False

    async def _read_prompt(self) -> HandoffNews | None:
        """Show what the prefill side computes, until it says what came of the hand-off."""
        assert self._prefill is not None
        async for entry in self._prefill:
            if entry.token_ids:
                self._emitted += entry.token_ids
                self._first_token_at = self._pairing.clock()
                self._first_timeline = entry.timeline
            is_handed = entry.finish_reason is FinishReason.HANDED_OFF
            reason = entry.finish_reason
            if is_handed:
                reason = FinishReason.STOP_STRING if self._is_finishing else None
            self._shown.push(replace(entry, finish_reason=reason, handoff=None))
            if self._shown.has_ended or is_handed or entry.handoff is not None:
                return entry.handoff
        return None

    async def _output(self) -> None:
        """Everything after the first token; all of it if the prefill side gave none."""
        # What decode found computed is what the other side has computed for this very request.
        is_second = self._first_token_at is not None
        async for entry in await self._open_decode():
            if entry.handoff is not None:
                await self._settle(entry.handoff)
            elif entry.token_ids or entry.finish_reason is not None:
                # The replica counts it itself by now.
                self._pairing.places.give_back(self._place)
            if is_second:
                entry = replace(entry, num_cached_tokens=0, timeline=self._joined(entry.timeline))
            self._shown.push(entry)

    def _joined(self, timeline: Timeline | None) -> Timeline | None:
        """Moments of both sides as one, in the clock of the prefill side.

        The clocks meet where this gateway saw the first token of each; both ways back are taken to
        be as long.
        """
        first = self._first_timeline
        if timeline is None or first is None or first.first_token_at is None:
            return timeline
        now = self._pairing.clock()
        if self._second_at is None:
            self._second_at = now
        if timeline.finished_at is None or timeline.first_token_at is None:
            return first
        assert self._first_token_at is not None
        gap_s = self._second_at - self._first_token_at
        rest_s = timeline.finished_at - timeline.first_token_at
        return replace(
            first,
            finished_at=first.first_token_at + gap_s + rest_s,
            num_preemptions=first.num_preemptions + timeline.num_preemptions,
        )

    async def _open_decode(self) -> StreamFeed:
        """The second attempt, on the promised replica or on another; raises ReplicaLost."""
        handoff = self._handoff
        taken = HandoffIn(handoff.generation, self._pairing.adopt_timeout_s)
        has_begun = len(self._emitted) > len(self._request.emitted_token_ids)
        request = replace(
            self._request,
            attempt=self._pairing.decode_attempt,
            emitted_token_ids=self._emitted,
            handoff=taken if handoff.state is HandoffState.ADOPTING else None,
            queue_timeout_s=None if has_begun else self._request.queue_timeout_s,
        )
        try:
            self._decode = await self._pairing.attempts.open(
                request, roles=DECODERS, place=self._place.reservation
            )
        except ReplicaLost:
            raise
        except DispatchError as error:
            # A stream that has begun is not refused: it looks on for a replica.
            raise ReplicaLost(str(error)) from error
        if self._is_finishing:
            self._decode.finish_choice(0)
        return self._decode

    async def _settle(self, news: HandoffNews) -> None:
        """The decode replica has adopted the blocks, or goes on without them."""
        self._pairing.places.give_back(self._place)
        if news.outcome != "adopted":
            await self._do(self._handoff.on_adopt_failed(news.generation, news.outcome))
            return
        if not (commands := self._handoff.on_adopted(news.generation)):
            return
        exposed_s = None
        if self._first_token_at is not None:
            exposed_s = self._pairing.clock() - self._first_token_at
        self._pairing.note(
            HandoffResult(
                "adopted",
                self.replica_id,
                exposed_s=exposed_s,
                num_bytes=news.num_bytes,
                transport=news.transport,
            )
        )
        await self._do(commands)

    async def _do(self, commands: Iterable[Command]) -> None:
        """Carry out what the hand-off says, as far as it is not done by who called it."""
        for command in commands:
            match command:
                case Withdraw(_, self._prefill_id) | DropTable():
                    # The prefill replica holds blocks and table, and drops both with its request.
                    await self._close_prefill()
                case DecodeLocally(_, decode_id, reason):
                    self._pairing.note(HandoffResult(reason, decode_id))
                case Adopt() | Withdraw():
                    log.debug("hand-off request=%s %s", self._request.request_id, command)
                case _:
                    raise AssertionError(command)

    async def _close_prefill(self) -> None:
        prefill, self._prefill = self._prefill, None
        if prefill is not None:
            # Handed over is a normal end there; a request that still computes is cancelled.
            if self._first_token_at is not None:
                prefill.finish_choice(0)
            await prefill.close()
