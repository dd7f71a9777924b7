"""The part of a start that needs Ray: connect or start it, deploy, follow, and undo."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import ray
from ray.exceptions import RayError

from cluster.app import build_app
from cluster.config import ClusterConfig
from cluster.launch.deployment import APP_NAME, DeployFailed, Deployment
from cluster.launch.endpoint import wait_until
from cluster.launch.local_ray import LocalRay, RayPlace, RayUnavailable
from cluster.launch.start_phases import ServiceLost, StartFailed, StartPhases
from cluster.launch.stop_wish import raise_on_stop_signals

log = logging.getLogger(__name__)


class RayService:
    """Our application on a Ray cluster, ours or another's. `ends` collects what undoes it."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        folder: Path,
        phases: StartPhases,
        ends: contextlib.ExitStack,
    ) -> None:
        self._config = config
        self._folder = folder
        self._phases = phases
        self._ends = ends
        self._local: LocalRay | None = None
        self._deployment = Deployment(config, is_ours=not config.ray.ray_address)

    def start(self) -> None:
        """Returns once Serve has the application; raises StartFailed."""
        with self._phases.phase("ray"), _as_start_failure(RayUnavailable):
            self._connect()
        raise_on_stop_signals()
        with self._phases.phase("deploy"), _as_start_failure(RayError, RuntimeError, ValueError):
            self._ends.callback(self._deployment.close)
            self._deployment.submit(build_app)

    def wait_until_running(self) -> None:
        """Raises StartFailed if Serve gives up or the start takes too long."""
        timeout_s = self._config.replica.startup_timeout_s
        with _as_start_failure(DeployFailed, RayError):
            if not wait_until(self._deployment.is_running, timeout_s=timeout_s):
                raise StartFailed(f"the replicas did not come up within {timeout_s:.0f} s")

    def check(self) -> None:
        """Raises ServiceLost if the local Ray has lost one of its own processes."""
        dead = self._local.dead_processes() if self._local else ()
        if dead:
            raise ServiceLost(f"Ray's {', '.join(dead)} ended unexpectedly")

    def _connect(self) -> None:
        if self._config.ray.ray_address:
            try:
                ray.init(
                    address=self._config.ray.ray_address,
                    namespace=APP_NAME,
                    logging_level=logging.WARNING,
                )
            except (RayError, RuntimeError, OSError, ValueError) as error:
                reason = str(error).partition("\n")[0]
                raise RayUnavailable(
                    f"ray_address={self._config.ray.ray_address}: {reason}"
                ) from error
            self._ends.callback(ray.shutdown)
            return
        num_replicas = sum(pool.most_replicas for pool in self._config.pools())
        num_actors = num_replicas + self._config.gateway.num_gateways
        place = RayPlace(
            folder=self._folder,
            num_cpus=max(os.cpu_count() or 1, 2 * num_actors + 2),
            object_store_memory_bytes=self._config.ray.object_store_memory_bytes,
        )
        self._local = self._ends.enter_context(LocalRay(place, namespace=APP_NAME))


@contextlib.contextmanager
def _as_start_failure(*kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        raise StartFailed(str(error).partition("\n")[0]) from error
