"""Lends replicas between the prefill and the decode pool while one of them is overloaded.

Splitwise keeps a third, mixed pool for this: a replica of the calmer pool also takes work of the
other one, and goes back to its own role when the pressure is over. A replica changes at most once
in a while, one at a time, and never so that a pool falls below its bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from router.replica_status import ReplicaRole

PoolRole = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class RoleBounds:
    """How far roles may move.

    min_prefill, min_decode: replicas that keep that role alone. max_lent: most replicas that are
    mixed at once. enter_pressure, leave_pressure: a pool borrows above the first and gives back
    below the second. hold_s: how long the pressure has to last, and how long a change stays.
    """

    min_prefill: int = 1
    min_decode: int = 1
    max_lent: int = 0
    enter_pressure: float = 1.0
    leave_pressure: float = 0.5
    hold_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("min_prefill", "min_decode", "max_lent"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 or more")
        if not 0.0 <= self.leave_pressure < self.enter_pressure:
            raise ValueError(
                f"leave_pressure={self.leave_pressure}: expected 0 or more, and less than "
                f"enter_pressure={self.enter_pressure}"
            )
        if not self.hold_s >= 0.0:
            raise ValueError(f"hold_s={self.hold_s}: expected 0 or more seconds")


@dataclass(frozen=True, slots=True)
class RoleMember:
    """A replica: the role that it was deployed with, the one it has now, and its load."""

    replica_id: str
    home: PoolRole
    role: ReplicaRole
    load_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ChangeRole:
    """A command: this replica has that role from now on. reason: lend or return."""

    replica_id: str
    role: ReplicaRole
    reason: Literal["lend", "return"]


class RolePlanner:
    """Decides changes of role from the pressure on both pools.

    Pressure is work relative to what the pool should hold at most: 1.0 is full. The caller defines
    it (waiting prompt tokens by target for prefill, blocks in use by watermark for decode).
    """

    def __init__(self, bounds: RoleBounds) -> None:
        self._bounds = bounds
        self._since: dict[PoolRole, float] = {}
        self._calm_since: dict[PoolRole, float] = {}
        self._changed_at: float | None = None

    def plan(
        self,
        members: Sequence[RoleMember],
        *,
        prefill_pressure: float,
        decode_pressure: float,
        now: float,
    ) -> ChangeRole | None:
        """At most one change; call it regularly, and again after the change was made."""
        pressures: dict[PoolRole, float] = {"prefill": prefill_pressure, "decode": decode_pressure}
        for pool, pressure in pressures.items():
            self._note(self._since, pool, pressure >= self._bounds.enter_pressure, now)
            self._note(self._calm_since, pool, pressure < self._bounds.leave_pressure, now)
        if self._changed_at is not None and now - self._changed_at < self._bounds.hold_s:
            return None
        change = self._returning(members, now) or self._lending(members, pressures, now)
        if change is not None:
            self._changed_at = now
        return change

    def _returning(self, members: Sequence[RoleMember], now: float) -> ChangeRole | None:
        for member in sorted(members, key=lambda member: (member.load_tokens, member.replica_id)):
            helped = _other(member.home)
            # Its own pool in need goes before the one that it helps.
            is_over = self._lasts(self._calm_since, helped, now) or self._lasts(
                self._since, member.home, now
            )
            if member.role == "mixed" and is_over:
                return ChangeRole(member.replica_id, member.home, "return")
        return None

    def _lending(
        self, members: Sequence[RoleMember], pressures: dict[PoolRole, float], now: float
    ) -> ChangeRole | None:
        if sum(member.role == "mixed" for member in members) >= self._bounds.max_lent:
            return None
        for pool in sorted(pressures, key=lambda pool: -pressures[pool]):
            lender = _other(pool)
            if not self._lasts(self._since, pool, now):
                continue
            if pressures[lender] >= self._bounds.enter_pressure:
                continue
            own = [member for member in members if member.role == lender == member.home]
            if len(own) > self._min_of(lender):
                lightest = min(own, key=lambda member: (member.load_tokens, member.replica_id))
                return ChangeRole(lightest.replica_id, "mixed", "lend")
        return None

    def _min_of(self, pool: PoolRole) -> int:
        return self._bounds.min_prefill if pool == "prefill" else self._bounds.min_decode

    def _lasts(self, since: dict[PoolRole, float], pool: PoolRole, now: float) -> bool:
        return pool in since and now - since[pool] >= self._bounds.hold_s

    @staticmethod
    def _note(since: dict[PoolRole, float], pool: PoolRole, holds: bool, now: float) -> None:
        if holds:
            since.setdefault(pool, now)
        else:
            since.pop(pool, None)


def _other(pool: PoolRole) -> PoolRole:
    return "decode" if pool == "prefill" else "prefill"
