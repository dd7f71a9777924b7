"""Chooses a replica for each request and raises that replica's load before the request leaves."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from router.replica_status import ReplicaState, ReplicaStatus
from router.routing_policy import Candidate, RoutingPolicy, RoutingRequest


@dataclass(frozen=True, slots=True)
class Reservation:
    """One request's place on a replica, held until the replica's own figures show it.

    number: unique within the router; a request may hold several, one after another.
    """

    number: int
    replica_id: str
    request_id: str
    work_tokens: int


class RequestRouter:
    """Who may take a request, who takes it, and what has been promised meanwhile.

    The load of a replica is what it says itself plus what was reserved there since, so a burst
    that arrives between two statuses spreads instead of landing on one replica.
    """

    def __init__(self, policy: RoutingPolicy) -> None:
        self._policy = policy
        self._statuses: dict[str, ReplicaStatus] = {}
        self._reservations: dict[int, Reservation] = {}
        self._reserved_tokens: Counter[str] = Counter()
        self._next_number = 0
        self._decisions: Counter[str] = Counter()

    def update(self, status: ReplicaStatus) -> None:
        """Take in what a replica said last, or that its state changed."""
        self._statuses[status.replica_id] = status

    def forget(self, replica_id: str) -> None:
        """A replica is gone: its reservations end with it."""
        self._statuses.pop(replica_id, None)
        for reservation in list(self._reservations.values()):
            if reservation.replica_id == replica_id:
                self.release(reservation)

    def choose(
        self, request: RoutingRequest, *, exclude: frozenset[str] = frozenset()
    ) -> Reservation | None:
        """Choose and reserve; None when no replica can take the request.

        exclude: replicas that already refused or failed this request.
        """
        candidates, reason = self._candidates(exclude)
        if not candidates:
            self._decisions[reason] += 1
            return None
        chosen = candidates[0] if len(candidates) == 1 else self._choose_of(request, candidates)
        self._decisions[reason if len(candidates) == 1 else self._policy.name] += 1
        return self._reserve(chosen.status.replica_id, request)

    def has_candidate(self, *, exclude: frozenset[str]) -> bool:
        """Whether `choose` would find a replica."""
        return bool(self._candidates(exclude)[0])

    def settle(self, reservation: Reservation) -> None:
        """The replica admitted the request: its own figure counts it from now on."""
        self._drop(reservation)

    def release(self, reservation: Reservation) -> None:
        """The request did not stay there: refused, failed or cancelled. Safe to call twice."""
        self._drop(reservation)

    @property
    def decisions(self) -> Mapping[str, int]:
        """How often each reason decided: a policy's name, or why there was no choice."""
        return dict(self._decisions)

    @property
    def statuses(self) -> Mapping[str, ReplicaStatus]:
        """Every replica known, by id."""
        return dict(self._statuses)

    def reserved_tokens(self, replica_id: str) -> int:
        """Work sent to a replica that its own figure does not show yet."""
        return self._reserved_tokens[replica_id]

    def check(self) -> None:
        """Reserved tokens are the sum of reservations, and only known replicas hold any."""
        sums: Counter[str] = Counter()
        for reservation in self._reservations.values():
            sums[reservation.replica_id] += reservation.work_tokens
        assert sums == self._reserved_tokens, (sums, self._reserved_tokens)
        assert set(sums) <= set(self._statuses), (set(sums), set(self._statuses))

    def _candidates(self, exclude: frozenset[str]) -> tuple[list[Candidate], str]:
        """Those that may take a request, best state only, and what a lack of choice is called."""
        statuses = [s for s in self._statuses.values() if s.state != ReplicaState.GONE]
        offered = [s for s in statuses if s.replica_id not in exclude]
        for state, reason in (
            (ReplicaState.ACTIVE, "only_candidate"),
            (ReplicaState.SUSPECT, "only_suspect"),
        ):
            fitting = [s for s in offered if s.state == state]
            if fitting:
                fitting.sort(key=lambda s: s.replica_id)
                return [Candidate(s, self._reserved_tokens[s.replica_id]) for s in fitting], reason
        return [], "all_excluded" if len(offered) < len(statuses) else "no_replica"

    def _choose_of(self, request: RoutingRequest, candidates: list[Candidate]) -> Candidate:
        chosen = self._policy.choose(request, candidates)
        assert chosen in candidates, (self._policy.name, chosen)
        return chosen

    def _reserve(self, replica_id: str, request: RoutingRequest) -> Reservation:
        reservation = Reservation(
            self._next_number, replica_id, request.request_id, request.work_tokens
        )
        self._next_number += 1
        self._reservations[reservation.number] = reservation
        self._reserved_tokens[replica_id] += reservation.work_tokens
        return reservation

    def _drop(self, reservation: Reservation) -> None:
        if self._reservations.pop(reservation.number, None) is None:
            return
        self._reserved_tokens[reservation.replica_id] -= reservation.work_tokens
        if not self._reserved_tokens[reservation.replica_id]:
            del self._reserved_tokens[reservation.replica_id]
