"""Starts a Ray of our own on this machine, closed to everybody else, and ends it with us."""

import logging
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import ray
import ray._private.worker
from ray.exceptions import RayError

log = logging.getLogger(__name__)


class RayUnavailable(Exception):
    """Ray did not start, or the cluster that was named does not answer."""


@dataclass(frozen=True, slots=True)
class RayPlace:
    """Where and how large the local Ray may be.

    folder: for sessions, logs and sockets (run_folder.py). num_cpus: slots that actors are
    placed by; they limit nothing. object_store_memory_bytes: shared memory it takes.
    """

    folder: Path
    num_cpus: int
    object_store_memory_bytes: int


class LocalRay:
    """One Ray node on loopback in processes of ours; as a context it ends them all.

    Ray's settings have to be in the environment before this module, and so Ray, is imported.
    """

    def __init__(self, place: RayPlace, *, namespace: str) -> None:
        self._place = place
        self._namespace = namespace

    def __enter__(self) -> "LocalRay":
        try:
            ray.init(
                address="local",
                num_cpus=self._place.num_cpus,
                include_dashboard=False,
                object_store_memory=self._place.object_store_memory_bytes,
                namespace=self._namespace,
                logging_level=logging.WARNING,
                # Loopback under a name that Ray does not trade for an outside address.
                _node_ip_address="127.0.0.2",
                _temp_dir=str(self._place.folder),
            )
        except (RayError, RuntimeError, OSError, ValueError) as error:
            ray.shutdown()
            reason = str(error).partition("\n")[0]
            raise RayUnavailable(f"the local Ray did not start: {reason}") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ray.shutdown()

    def dead_processes(self) -> tuple[str, ...]:
        """Names of Ray's own processes that have ended although nobody asked them to."""
        node = ray._private.worker._global_node
        return tuple(name for name, _ in node.dead_processes()) if node else ("node",)
