"""preStop step of a worker pod: hand its replicas over and let its streams end before Ray does.

Kubernetes tells a pod that is to go by a signal that Ray takes as the end. Here Ray is told first
that the node drains: Serve starts replacements elsewhere, moves the replicas, and takes the node's
HAProxy out of service. Then this waits, until nothing is left here that a client could miss.
"""

import argparse
import logging
import math
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil
from prometheus_client.parser import text_string_to_metric_families
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.core.generated import autoscaler_pb2

log = logging.getLogger(__name__)

_POLL_S = 1.0
_SCRAPE_TIMEOUT_S = 2.0
_METRICS_PORT_VARIABLE = "RAY_SERVE_HAPROXY_METRICS_PORT"


class NoSuchNode(Exception):
    """No raylet runs here, so there is nothing to drain."""


@dataclass(frozen=True, slots=True)
class RayNode:
    """The Ray node of this pod, from its raylet's command line."""

    pid: int
    node_id: str
    gcs_address: str


@dataclass(frozen=True, slots=True)
class Remainder:
    """What a node still has to do: Serve replicas, HAProxy processes, requests in the newest one.

    An older HAProxy lives as long as a stream that runs through it.
    """

    num_replicas: int
    num_haproxies: int
    num_requests: int

    @property
    def is_nothing(self) -> bool:
        """Whether Ray may end here without anybody noticing."""
        return self.num_replicas == 0 and self.num_haproxies <= 1 and self.num_requests == 0


def find_node(node_id: str | None = None) -> RayNode:
    """The raylet of this pod, or the one with this id where several run; raises NoSuchNode."""
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] != "raylet":
            continue
        options = dict(word.split("=", 1) for word in process.info["cmdline"] or () if "=" in word)
        found = options.get("--node_id", "")
        if found and node_id in (None, found):
            return RayNode(process.pid, found, options["--gcs-address"])
    raise NoSuchNode(f"no raylet {node_id or ''} runs here")


def ask_to_drain(node: RayNode, *, limit_s: float) -> None:
    """Tell Ray that the node goes within `limit_s`; raises RuntimeError if Ray says no."""
    deadline_ms = math.floor((time.time() + limit_s) * 1000)
    reason = autoscaler_pb2.DrainNodeReason.Value(  # type: ignore[attr-defined]
        "DRAIN_NODE_REASON_PREEMPTION"
    )
    is_accepted, why_not = GcsClient(address=node.gcs_address).drain_node(
        node.node_id, reason, "the pod is to end", deadline_ms
    )
    if not is_accepted:
        raise RuntimeError(f"Ray does not drain node {node.node_id}: {why_not}")


def remainder(node: RayNode, *, metrics_port: int) -> Remainder:
    """What is left on the node now; what cannot be counted any more counts as nothing."""
    try:
        processes = psutil.Process(node.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return Remainder(0, 0, 0)
    names = [_name(process) for process in processes]
    num_haproxies = names.count("haproxy")
    return Remainder(
        num_replicas=sum(name.startswith("ray::ServeReplica:") for name in names),
        num_haproxies=num_haproxies,
        num_requests=_requests_in_haproxy(metrics_port) if num_haproxies else 0,
    )


def wait_until_empty(
    look: Callable[[], Remainder],
    *,
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Look again and again; False if something was left after `limit_s`."""
    deadline = clock() + limit_s
    seen = None
    while not (left := look()).is_nothing:
        if left != seen:
            log.info(
                "draining replicas=%d haproxies=%d requests=%d",
                left.num_replicas,
                left.num_haproxies,
                left.num_requests,
            )
            seen = left
        if clock() >= deadline:
            return False
        sleep(_POLL_S)
    return True


def _name(process: psutil.Process) -> str:
    try:
        words = process.cmdline()
        return words[0] if words and words[0].startswith("ray::") else str(process.name())
    except psutil.NoSuchProcess:
        return ""


def _requests_in_haproxy(metrics_port: int) -> int:
    url = f"http://127.0.0.1:{metrics_port}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=_SCRAPE_TIMEOUT_S) as answer:
            text = answer.read().decode()
    except OSError as error:
        log.warning("haproxy cannot be asked url=%s error=%s", url, error)
        return 0
    return int(
        sum(
            sample.value
            for family in text_string_to_metric_families(text)
            if family.name == "haproxy_backend_current_sessions"
            for sample in family.samples
            if sample.labels.get("proxy", "").startswith("http-")
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m cluster.kubernetes.drain_node --limit-s SECONDS`; 1 if something was cut."""
    parser = argparse.ArgumentParser(description="Drain this pod's Ray node and wait.")
    parser.add_argument("--limit-s", type=float, required=True, help="longest wait")
    parser.add_argument("--node-id", help="which node, where several run on one machine")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    metrics_port = int(os.environ.get(_METRICS_PORT_VARIABLE, "9101"))
    try:
        node = find_node(options.node_id)
        ask_to_drain(node, limit_s=options.limit_s)
    except (NoSuchNode, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    is_empty = wait_until_empty(
        lambda: remainder(node, metrics_port=metrics_port), limit_s=options.limit_s
    )
    log.info("drained node=%s is_empty=%s", node.node_id, is_empty)
    return 0 if is_empty else 1


if __name__ == "__main__":
    sys.exit(main())
