"""Everything that leans on Ray Serve's alpha router interface, in one file, for one pinned Ray.

The decision was taken before the call (DESIGN 2.2); this adapter only obeys. Three rules come from
how Serve 2.60 treats a router: each call runs in a context of its own, or concurrent calls of one
HTTP request wait for ever; a request that cannot be routed asks for back-off, or it spins; and
nothing is ever raised, or the request waits for ever.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextvars import Context
from typing import Any, Protocol, cast

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import (
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)

from cluster.errors import NoReplica
from cluster.replica.open_requests import Acknowledgement
from cluster.replica.replica_announcement import ReplicaRoute
from replicas.request import EngineRequest

log = logging.getLogger(__name__)

_ADAPTER_POLL_S = 0.02
WAKE_METHOD = "wake"


class RoutingListener(Protocol):
    """Who follows the replica set and takes back what could not be routed."""

    def on_replica_set(self, replicas: Mapping[str, Mapping[str, object]]) -> None:
        """The deployment now consists of these replicas, by id, with what each announced."""
        ...

    def on_not_routed(self, replica_id: str, request_id: str, attempt: int, reason: str) -> None:
        """The replica that was chosen for a request cannot be reached, or turned it away."""
        ...


class RouteObeyingRouter(RequestRouter):
    """Sends each request to the replica that its ReplicaRoute names, or nowhere."""

    def initialize_state(self, **kwargs: object) -> None:
        """Called by Serve once, before any replica is known."""
        self._listener: RoutingListener | None = None
        self._listener_loop: asyncio.AbstractEventLoop | None = None

    def listen(self, listener: RoutingListener, loop: asyncio.AbstractEventLoop) -> None:
        """Tell `listener`, on `loop`, the replica set now and whenever it changes."""
        self._listener, self._listener_loop = listener, loop
        self._tell_set()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The named replica, once; a second call for one request means that it did not get in."""
        if pending_request is None:
            return []
        was_sent = pending_request.routing_context.should_backoff
        pending_request.routing_context.should_backoff = True
        if pending_request.metadata.call_method == WAKE_METHOD:
            return [candidate_replicas]
        carried = _carried(pending_request)
        if carried is None:
            log.error("request without a route method=%s", pending_request.metadata.call_method)
            return []
        request, route = carried
        for replica in candidate_replicas:
            if replica.replica_id.unique_id == route.replica_id:
                if was_sent:
                    self._tell_not_routed(request, route, "the replica turned the request away")
                    return []
                self._vouch_for(replica)
                return [[replica]]
        self._tell_not_routed(request, route, "the replica left the deployment")
        return []

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Serve's controller sent another replica set."""
        super().update_replicas(replicas)
        self._tell_set()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """A call found the replica's process dead before the controller did."""
        super().on_replica_actor_died(replica_id)
        self._tell_set()

    def _vouch_for(self, replica: RunningReplica) -> None:
        # The engine queues, so Serve need not ask the replica how many requests it has, which
        # would be an actor call with a deadline before every request that finds no fresh figure.
        # Written each time: a figure may turn stale between this look and Serve's own.
        num_ongoing = self.replica_queue_len_cache.get(replica.replica_id) or 0
        self.replica_queue_len_cache.update(replica.replica_id, num_ongoing)

    def _tell_set(self) -> None:
        replicas = {
            replica_id.unique_id: replica.replica_metadata
            for replica_id, replica in self.curr_replicas.items()
        }
        self._tell("on_replica_set", replicas)

    def _tell_not_routed(self, request: EngineRequest, route: ReplicaRoute, reason: str) -> None:
        self._tell("on_not_routed", route.replica_id, request.request_id, request.attempt, reason)

    def _tell(self, event: str, *arguments: object) -> None:
        if self._listener is None or self._listener_loop is None:
            return
        if self._listener_loop.is_closed():
            self._listener = None
            return
        # Serve may run the router on a loop of its own, in another thread.
        self._listener_loop.call_soon_threadsafe(getattr(self._listener, event), *arguments)


async def follow_replicas(handle: DeploymentHandle[Any], listener: RoutingListener) -> None:
    """Connect `listener` with the adapter that Serve made for this handle.

    Serve makes it when the controller's first message arrives, and offers no way to be told.
    """
    serve_router = cast(Any, handle.generate)._router._asyncio_router
    while serve_router._request_router is None:  # noqa: ASYNC110 - Serve has no event for it
        await asyncio.sleep(_ADAPTER_POLL_S)
    adapter = serve_router._request_router
    # Serve pickles the class by value, so it is not the one of this module, only a copy.
    assert type(adapter).__name__ == RouteObeyingRouter.__name__, type(adapter)
    adapter.listen(listener, asyncio.get_running_loop())


class WakeCaller:
    """Makes the call that asks for any replica; it waits in the handle while there is none."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._wake = getattr(handle, WAKE_METHOD)

    async def __call__(self) -> None:
        """Returns once a replica has answered; cancelling it withdraws the call.

        Raises NoReplica if Serve gives the call up.
        """
        await asyncio.get_running_loop().create_task(self._hold(), context=Context())

    async def _hold(self) -> None:
        response = self._wake.remote()
        try:
            await response
        except asyncio.CancelledError:
            response.cancel()
            raise
        except (RayServeException, RayError) as error:
            raise NoReplica(f"Serve did not start a replica: {error}") from error


class ServeCaller:
    """Starts the unary call that carries one request to its replica."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._generate = handle.generate

    def __call__(
        self, request: EngineRequest, route: ReplicaRoute
    ) -> "asyncio.Task[Acknowledgement]":
        """The open call; cancelling the task cancels the request at the replica."""
        # A context of its own, for the call and for reading its answer: Serve takes its request
        # id from the context, and hands back raw bytes in that of an HTTP request.
        return asyncio.get_running_loop().create_task(self._hold(request, route), context=Context())

    async def _hold(self, request: EngineRequest, route: ReplicaRoute) -> Acknowledgement:
        response = self._generate.remote(request, route)
        try:
            answer: Acknowledgement = await response
        except asyncio.CancelledError:
            response.cancel()  # type: ignore[no-untyped-call]
            raise
        return answer


def _carried(pending: PendingRequest) -> tuple[EngineRequest, ReplicaRoute] | None:
    match pending.args:
        case [EngineRequest() as request, ReplicaRoute() as route]:
            return request, route
        case _:
            return None
