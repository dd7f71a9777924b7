"""Chooses a replica for each request and raises that replica's load before the request leaves."""

from collections import Counter
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass

from router.disaggregation import Side
from router.pace import Pace
from router.prefixes.prefix_index import PrefixIndex
from router.replica_book import ReplicaBook
from router.replica_status import (
    EVERY_ROLE,
    PREFILL_ALONE,
    ReplicaRole,
    ReplicaState,
    ReplicaStatus,
)
from router.routing_policy import Candidate, Hits, RoutingPolicy, RoutingRequest, Unmeetable


@dataclass(frozen=True, slots=True)
class Reservation:
    """One request's place on a replica, held until the replica's own figures show it.

    number: unique within the router; a request may hold several, one after another.
    num_hit_blocks: of its prefix, those that the replica was believed to hold; None if nobody
    looked.
    """

    number: int
    replica_id: str
    request_id: str
    work_tokens: int
    prompt_tokens: int = 0
    num_hit_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class RoutedBlocks:
    """Full blocks of all prompts that were routed by hits, and the hits at the chosen replicas."""

    num_prompt: int = 0
    num_hit: int = 0


class RequestRouter:
    """Who may take a request, who takes it, and what has been promised meanwhile.

    The load of a replica is what it says itself plus what was reserved there since, so a burst
    that arrives between two statuses spreads instead of landing on one replica.

    index: what the prefix caches hold; None for a policy that does not look at them.
    gateway_id: as replicas name this gateway in their statuses. prefill_policy: chooses among
    replicas of the prefill pool alone, since a policy may remember what it chose before; with one,
    hits are looked up whatever the policy.
    """

    def __init__(
        self,
        policy: RoutingPolicy,
        *,
        index: PrefixIndex | None = None,
        gateway_id: str = "",
        prefill_policy: RoutingPolicy | None = None,
    ) -> None:
        assert index is not None or not policy.uses_hits, "this policy needs a prefix index"
        self._policy = policy
        self._prefill_policy = prefill_policy or policy
        self._index = index if policy.uses_hits or prefill_policy else None
        self.gateway_id = gateway_id
        self._book = ReplicaBook(gateway_id=gateway_id)
        self._reservations: dict[int, Reservation] = {}
        self._next_number = 0
        self._decisions: Counter[str] = Counter()
        self._num_prompt_blocks = 0
        self._num_hit_blocks = 0

    def update(self, status: ReplicaStatus) -> None:
        """Take in what a replica said last, or that its state changed."""
        self._book.update(status)

    def forget(self, replica_id: str) -> None:
        """A replica is gone: its reservations end with it."""
        for reservation in list(self._reservations.values()):
            if reservation.replica_id == replica_id:
                self.release(reservation)
        self._book.forget(replica_id)

    def choose(
        self,
        request: RoutingRequest,
        *,
        exclude: frozenset[str] = frozenset(),
        roles: frozenset[ReplicaRole] = EVERY_ROLE,
    ) -> Reservation | Unmeetable | None:
        """Choose and reserve; None when no replica can take the request.

        Unmeetable when some could, but none in the time that the request states.
        exclude: replicas that already refused or failed this request. roles: of which kinds the
        replica may be.
        """
        candidates, reason = self._candidates(exclude, roles)
        if not candidates:
            self._decisions[reason] += 1
            return None
        hits = self._hits(request)
        choice = self._policy_for(roles).choose(request, candidates, hits)
        if isinstance(choice, Unmeetable):
            self._decisions[f"unmeetable_{choice.reason}"] += 1
            return choice
        self._decisions[reason if len(candidates) == 1 else choice.reason] += 1
        return self._reserve(choice.candidate.status.replica_id, request, hits)

    def look(
        self,
        request: RoutingRequest,
        *,
        exclude: frozenset[str],
        roles: frozenset[ReplicaRole],
    ) -> Side | None:
        """How the replica that would be chosen stands to the prompt, for router.disaggregation.

        Nothing is reserved or counted. None when no replica can take the request in time.
        """
        candidates, _ = self._candidates(exclude, roles)
        if not candidates:
            return None
        hits = self._hits(request)
        # Who takes replicas in turn would otherwise lose a turn with every look.
        policy = copy(self._policy_for(roles))
        choice = policy.choose(request, candidates, hits)
        return None if isinstance(choice, Unmeetable) else self._side(choice.candidate, hits)

    def has_candidate(
        self, *, exclude: frozenset[str], roles: frozenset[ReplicaRole] = EVERY_ROLE
    ) -> bool:
        """Whether `choose` would find a replica."""
        return bool(self._candidates(exclude, roles)[0])

    def settle(self, reservation: Reservation) -> None:
        """The replica admitted the request: its own figure counts it from now on."""
        self._drop(reservation)

    def release(self, reservation: Reservation) -> None:
        """The request did not stay there: refused, failed or cancelled. Safe to call twice."""
        self._drop(reservation)

    @property
    def decisions(self) -> Mapping[str, int]:
        """How often each reason decided: a policy's own, or why there was no choice."""
        return dict(self._decisions)

    @property
    def routed_blocks(self) -> RoutedBlocks:
        """What was to be had of the prefix caches, and what was; no retries are taken off."""
        return RoutedBlocks(self._num_prompt_blocks, self._num_hit_blocks)

    @property
    def statuses(self) -> Mapping[str, ReplicaStatus]:
        """Every replica known, by id."""
        return self._book.statuses

    @property
    def paces(self) -> Mapping[str, Pace]:
        """How fast each replica was measured to be, by id."""
        return self._book.paces

    def reserved_tokens(self, replica_id: str) -> int:
        """Work sent to a replica that its own figure does not show yet."""
        return self._book.reserved_tokens(replica_id)

    def check(self) -> None:
        """Reserved tokens are the sum of reservations, and only known replicas hold any."""
        sums: Counter[str] = Counter()
        for reservation in self._reservations.values():
            sums[reservation.replica_id] += reservation.work_tokens
        known = self._book.statuses
        assert set(sums) <= set(known), (set(sums), set(known))
        for replica_id in known:
            reserved = self._book.reserved_tokens(replica_id)
            assert reserved == sums[replica_id], (replica_id, reserved, sums[replica_id])

    def _policy_for(self, roles: frozenset[ReplicaRole]) -> RoutingPolicy:
        return self._prefill_policy if roles == PREFILL_ALONE else self._policy

    def _hits(self, request: RoutingRequest) -> Hits:
        if self._index is None or not request.block_hashes:
            return {}
        return self._index.hits(request.block_hashes)

    def _side(self, candidate: Candidate, hits: Hits) -> Side:
        status = candidate.status
        return Side(
            self._book.paces[status.replica_id],
            hit_tokens=hits.get(status.replica_id, 0) * status.block_size,
            queued_prefill_tokens=(status.queued_prompt_tokens + candidate.reserved_prompt_tokens),
            num_decoding=status.num_running,
        )

    def _candidates(
        self, exclude: frozenset[str], roles: frozenset[ReplicaRole]
    ) -> tuple[list[Candidate], str]:
        """Those that may take a request, best state only, and what a lack of choice is called."""
        for state, reason in (
            (ReplicaState.ACTIVE, "only_candidate"),
            (ReplicaState.SUSPECT, "only_suspect"),
        ):
            if candidates := self._book.candidates(state, exclude=exclude, roles=roles):
                return candidates, reason
        is_excluded = any(
            status.state is not ReplicaState.GONE and status.replica_id in exclude
            for status in self._book.statuses.values()
        )
        return [], "all_excluded" if is_excluded else "no_replica"

    def _reserve(self, replica_id: str, request: RoutingRequest, hits: Hits) -> Reservation:
        if self._index is not None:
            self._num_prompt_blocks += len(request.block_hashes)
            self._num_hit_blocks += hits.get(replica_id, 0)
        reservation = Reservation(
            self._next_number,
            replica_id,
            request.request_id,
            request.work_tokens,
            request.prompt_tokens,
            None if self._index is None else hits.get(replica_id, 0),
        )
        self._next_number += 1
        self._reservations[reservation.number] = reservation
        self._book.reserve(
            replica_id,
            work_tokens=reservation.work_tokens,
            prompt_tokens=reservation.prompt_tokens,
            num=1,
        )
        return reservation

    def _drop(self, reservation: Reservation) -> None:
        if self._reservations.pop(reservation.number, None) is not None:
            self._book.reserve(
                reservation.replica_id,
                work_tokens=-reservation.work_tokens,
                prompt_tokens=-reservation.prompt_tokens,
                num=-1,
            )
