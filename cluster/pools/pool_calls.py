"""Makes several deployments of replicas look like one set: merged for who follows, told apart for
who calls."""

import asyncio
from collections.abc import Mapping

from cluster.dispatch.serve_dispatcher import CallReplica
from cluster.dispatch.serve_router_adapter import RoutingListener
from cluster.replica.open_requests import Acknowledgement
from cluster.replica.replica_announcement import ReplicaRoute
from replicas.request import EngineRequest


class PoolSets:
    """The union of the pools' replica sets; ids are unique over all of them.

    listener: told the whole union whenever one pool changes.
    """

    def __init__(self, listener: RoutingListener) -> None:
        self._listener = listener
        self._sets: dict[str, Mapping[str, Mapping[str, object]]] = {}

    def pool(self, name: str) -> "PoolSet":
        """The listener for one pool."""
        return PoolSet(self, name)

    def pool_of(self, replica_id: str) -> str | None:
        """Which pool has that replica now; None if it has left."""
        return next((name for name, known in self._sets.items() if replica_id in known), None)

    def update(self, name: str, replicas: Mapping[str, Mapping[str, object]]) -> None:
        """That pool consists of these replicas now."""
        self._sets[name] = replicas
        self._listener.on_replica_set(
            {k: v for each in self._sets.values() for k, v in each.items()}
        )

    def reject(self, replica_id: str, request_id: str, attempt: int, reason: str) -> None:
        """A request could not be brought to a replica of some pool."""
        self._listener.on_not_routed(replica_id, request_id, attempt, reason)


class PoolSet:
    """The RoutingListener of one pool."""

    def __init__(self, sets: PoolSets, name: str) -> None:
        self._sets = sets
        self._name = name

    def on_replica_set(self, replicas: Mapping[str, Mapping[str, object]]) -> None:
        """The pool now consists of these replicas, by id, with what each announced."""
        self._sets.update(self._name, replicas)

    def on_not_routed(self, replica_id: str, request_id: str, attempt: int, reason: str) -> None:
        """The replica that was chosen for a request cannot be reached, or turned it away."""
        self._sets.reject(replica_id, request_id, attempt, reason)


class PoolCaller:
    """Calls a replica by the handle of its pool. callers: by pool, at least one."""

    def __init__(self, sets: PoolSets, callers: Mapping[str, CallReplica]) -> None:
        self._sets = sets
        self._callers = callers

    def __call__(
        self, request: EngineRequest, route: ReplicaRoute
    ) -> "asyncio.Task[Acknowledgement]":
        """The open call; cancelling the task cancels the request at the replica."""
        # Any handle will do for a replica that just left: it answers that it is not there.
        pool = self._sets.pool_of(route.replica_id) or next(iter(self._callers))
        return self._callers[pool](request, route)
