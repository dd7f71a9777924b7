"""The requests a replica has open: whose they are, how much work is left, and when they end."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from replicas.handoff import HandoffIn, HandoffOut
from replicas.request import EngineRequest, FinishReason, TokenEntry
from router.replica_status import GatewayAdmission

RequestKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The unary answer to a request; its tokens went another way (DESIGN 2.4).

    is_accepted False: the replica did not take the request, and `reason` says why; another may.
    finish_reasons: one for each choice. num_output_tokens: over all choices.
    """

    is_accepted: bool
    reason: str = ""
    finish_reasons: tuple[FinishReason, ...] = ()
    num_output_tokens: int = 0


@dataclass(slots=True)
class OpenRequest:
    """One request while it is open. `done` is set when every choice has ended.

    owed_tokens: output tokens that each choice may still produce; a choice that ended is absent.
    owed_prompt_tokens: prompt tokens not yet known to be computed.
    """

    request: EngineRequest
    gateway_id: str
    done: asyncio.Future[Acknowledgement]
    owed_prompt_tokens: int
    owed_tokens: dict[int, int]
    next_index: dict[int, int]
    finish_reasons: dict[int, FinishReason] = field(default_factory=dict)
    num_output_tokens: int = 0


class OpenRequests:
    """Every open request by (id, attempt), with the sum of their work kept as they advance."""

    def __init__(self) -> None:
        self._open: dict[RequestKey, OpenRequest] = {}
        self._outstanding_tokens = 0
        self._admitted_tokens: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, key: RequestKey) -> bool:
        return key in self._open

    @property
    def outstanding_tokens(self) -> int:
        """Prompt and output tokens that the open requests may still need."""
        return self._outstanding_tokens

    @property
    def admissions(self) -> tuple[GatewayAdmission, ...]:
        """Tokens of work taken from each gateway so far."""
        return tuple(GatewayAdmission(*item) for item in self._admitted_tokens.items())

    def forget_gateway(self, gateway_id: str) -> None:
        """That gateway is gone, and so is the sum of its work."""
        self._admitted_tokens.pop(gateway_id, None)

    def add(self, request: EngineRequest, gateway_id: str) -> asyncio.Future[Acknowledgement]:
        """Open a request for that gateway; the future is set when it has ended."""
        key = (request.request_id, request.attempt)
        assert key not in self._open, key
        num_emitted = len(request.emitted_token_ids)
        owed = request.sampling.max_tokens - num_emitted
        owed_prompt = len(request.prompt_token_ids) + num_emitted
        # Of a request that is handed over, each side owes its own part.
        match request.handoff:
            case HandoffOut():
                owed = min(owed, 1)
            case HandoffIn():
                owed_prompt = 1
        entry = OpenRequest(
            request=request,
            gateway_id=gateway_id,
            done=asyncio.get_running_loop().create_future(),
            owed_prompt_tokens=owed_prompt,
            owed_tokens=dict.fromkeys(range(request.num_choices), max(owed, 0)),
            next_index=dict.fromkeys(range(request.num_choices), num_emitted),
        )
        self._open[key] = entry
        work_tokens = entry.owed_prompt_tokens + sum(entry.owed_tokens.values())
        self._outstanding_tokens += work_tokens
        self._admitted_tokens[gateway_id] += work_tokens
        return entry.done

    def remove(self, key: RequestKey) -> bool:
        """Forget a request whatever its state; False if it was not open."""
        entry = self._open.pop(key, None)
        if entry is None:
            return False
        self._outstanding_tokens -= entry.owed_prompt_tokens + sum(entry.owed_tokens.values())
        return True

    def drop(self, keys: Iterable[RequestKey], *, reason: str) -> None:
        """End requests that nobody waits for: their calls are answered, their entries are not."""
        for key in list(keys):
            opened = self._open.get(key)
            if opened is not None:
                self.remove(key)
                if not opened.done.done():
                    opened.done.set_result(Acknowledgement(is_accepted=True, reason=reason))

    def apply(self, entries: Iterable[TokenEntry]) -> dict[str, list[TokenEntry]]:
        """Take in one step's entries; returns them by gateway, without those nobody waits for."""
        by_gateway: dict[str, list[TokenEntry]] = defaultdict(list)
        for entry in entries:
            key = (entry.request_id, entry.attempt)
            opened = self._open.get(key)
            if opened is None:
                continue
            by_gateway[opened.gateway_id].append(entry)
            self._advance(opened, entry)
            if not opened.owed_tokens:
                self._end(key, opened)
        return by_gateway

    def fail_all(self) -> dict[str, list[TokenEntry]]:
        """End every open request with an error; returns an entry for each choice, by gateway."""
        failed = [
            TokenEntry(
                request_id=opened.request.request_id,
                attempt=opened.request.attempt,
                choice=choice,
                index=opened.next_index[choice],
                finish_reason=FinishReason.ERROR,
            )
            for opened in self._open.values()
            for choice in opened.owed_tokens
        ]
        return self.apply(failed)

    def keys_of(self, gateway_id: str) -> list[RequestKey]:
        """What that gateway has open."""
        return [key for key, opened in self._open.items() if opened.gateway_id == gateway_id]

    def check(self) -> None:
        """The sum of work is the sum over open requests, and every open request has a choice."""
        total = sum(
            opened.owed_prompt_tokens + sum(opened.owed_tokens.values())
            for opened in self._open.values()
        )
        assert total == self._outstanding_tokens, (total, self._outstanding_tokens)
        assert all(opened.owed_tokens for opened in self._open.values())

    def _advance(self, opened: OpenRequest, entry: TokenEntry) -> None:
        if entry.refusal is not None:
            # A refusal is of the whole request, whatever choice it names.
            for choice in list(opened.owed_tokens):
                self._finish(opened, choice, FinishReason.REFUSED)
            return
        owed = opened.owed_tokens.get(entry.choice)
        if owed is None:
            return
        if entry.token_ids:
            self._outstanding_tokens -= opened.owed_prompt_tokens
            opened.owed_prompt_tokens = 0
            paid = min(owed, len(entry.token_ids))
            opened.owed_tokens[entry.choice] = owed - paid
            self._outstanding_tokens -= paid
            opened.next_index[entry.choice] = entry.index + len(entry.token_ids)
            opened.num_output_tokens += len(entry.token_ids)
        if entry.finish_reason is not None:
            self._finish(opened, entry.choice, entry.finish_reason)

    def _finish(self, opened: OpenRequest, choice: int, reason: FinishReason) -> None:
        self._outstanding_tokens -= opened.owed_tokens.pop(choice)
        opened.finish_reasons[choice] = reason

    def _end(self, key: RequestKey, opened: OpenRequest) -> None:
        self.remove(key)
        if not opened.done.done():
            reasons = tuple(reason for _, reason in sorted(opened.finish_reasons.items()))
            opened.done.set_result(
                Acknowledgement(
                    is_accepted=True,
                    finish_reasons=reasons,
                    num_output_tokens=opened.num_output_tokens,
                )
            )
