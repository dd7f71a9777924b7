"""Lends prefill replicas to the decode pool while that is overloaded, as one gateway routes.

The engine of either pool can do all of a request, so a replica changes its role by what it is sent:
one that is lent counts as mixed. Gateways see the same statuses and decide alike without talking.
The other way round nothing has to be lent: a decode replica computes prompts itself as soon as the
prefill pool is the slower way (router.disaggregation).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from cluster.dispatch.replica_directory import ReplicaDirectory
from router.pace import Pace
from router.replica_status import ReplicaState, ReplicaStatus
from router.request_router import RequestRouter
from router.role_plan import ChangeRole, RoleBounds, RoleMember, RolePlanner

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.5
# Of the places and blocks of a decode pool: more than this in use is full.
_FULL_RATIO = 0.9
# Work of the prefill pool for so long is as much as it should have.
_FULL_BACKLOG_S = 2.0
# Decode replicas are never lent.
_ALL = 1 << 30

# Of an event: its kind, the replica, and what happened.
Tell = Callable[[str, str, str], None]


class RoleLending:
    """Looks at the pools regularly. max_lent: most replicas that are lent at once. hold_s: how
    long an overload has to last, and how long a replica stays lent at least."""

    def __init__(
        self,
        *,
        router: RequestRouter,
        directory: ReplicaDirectory,
        max_lent: int,
        hold_s: float,
        clock: Callable[[], float],
        tell: Tell,
    ) -> None:
        self._router = router
        self._directory = directory
        self._clock = clock
        self._tell = tell
        bounds = RoleBounds(min_decode=_ALL, max_lent=max_lent, hold_s=hold_s)
        self._planner = RolePlanner(bounds)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look in the background."""
        self._task = asyncio.create_task(self._look_on(), name="role lending")

    async def close(self) -> None:
        """Change nothing any more."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def look(self) -> ChangeRole | None:
        """Change one role, if that is due; what was changed."""
        statuses = [s for s in self._router.statuses.values() if s.state is ReplicaState.ACTIVE]
        homes = {k: link.announcement.role for k, link in self._directory.links.items()}
        members = []
        for status in statuses:
            home = homes.get(status.replica_id)
            if home == "prefill" or home == "decode":
                members.append(
                    RoleMember(status.replica_id, home, status.role, status.outstanding_tokens)
                )
        change = self._planner.plan(
            members,
            prefill_pressure=prefill_pressure(
                [s for s in statuses if homes.get(s.replica_id) == "prefill"], self._router.paces
            ),
            decode_pressure=decode_pressure(
                [s for s in statuses if homes.get(s.replica_id) == "decode"]
            ),
            now=self._clock(),
        )
        if change is not None:
            log.info("role changed replica=%s role=%s", change.replica_id, change.role)
            self._directory.set_role(change.replica_id, change.role)
            verb = "lent to the decode pool" if change.reason == "lend" else "back in its own pool"
            self._tell("handoff", change.replica_id, verb)
        return change

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            self.look()


def decode_pressure(statuses: Sequence[ReplicaStatus]) -> float:
    """Places or blocks in use, whichever is the larger share; 1.0 is full, more waits in line."""
    num_places = sum(status.max_num_seqs for status in statuses)
    num_blocks = sum(status.num_blocks for status in statuses)
    if not num_places or not num_blocks:
        return 0.0
    taken = sum(status.num_running + status.num_waiting for status in statuses) / num_places
    held = 1.0 - sum(status.num_free_blocks for status in statuses) / num_blocks
    return max(taken, held) / _FULL_RATIO


def prefill_pressure(statuses: Sequence[ReplicaStatus], paces: Mapping[str, Pace]) -> float:
    """How long the pool needs for the work that it has, by how long it should; 1.0 is full."""
    if not statuses:
        return 0.0
    work_s = sum(
        status.outstanding_tokens * paces.get(status.replica_id, Pace()).prefill_token_s
        for status in statuses
    )
    return work_s / len(statuses) / _FULL_BACKLOG_S
