"""What tests ask of rendered objects: pods, containers, Ray groups, Serve's config, quantities."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.k8s.kustomize import Object, load, render

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
OVERLAYS = ("cpu-demo", "gpu", "gpu-disaggregated")
PART_OF = {"app.kubernetes.io/part-of": "pagoda"}


@functools.cache
def _rendered(overlay: str) -> str:
    return yaml.safe_dump_all(render(K8S / "overlays" / overlay))


def rendered(overlay: str) -> list[Object]:
    """The objects of an overlay, each call its own copy, and the namespace they go into."""
    objects = yaml.load_all(_rendered(overlay), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return [*objects, *load(K8S / "namespace-pagoda.yaml")]


def only(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """The one object of a kind, or of a kind and a name."""
    found = [o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} objects {kind} {name or ''}"
    return found[0]


def ray_cluster(objects: list[Object]) -> Object:
    """The rayClusterConfig of the RayService."""
    return only(objects, "RayService")["spec"]["rayClusterConfig"]


def groups(objects: list[Object]) -> dict[str, Object]:
    """Ray's groups of pods by name, the head among them."""
    cluster = ray_cluster(objects)
    workers = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    return {"head": cluster["headGroupSpec"], **workers}


def pod_templates(objects: list[Object]) -> dict[str, Object]:
    """Every pod template by the name of what has it."""
    found = {name: group["template"] for name, group in groups(objects).items()}
    for item in objects:
        if item["kind"] in ("StatefulSet", "Deployment", "DaemonSet", "Job"):
            found[item["metadata"]["name"]] = item["spec"]["template"]
    return found


def containers(template: Object) -> Iterator[Object]:
    """Every container of a pod, those that only prepare it too."""
    yield from template["spec"].get("initContainers", ())
    yield from template["spec"]["containers"]


def ray_container(group: Object) -> Object:
    """The container that runs Ray, which KubeRay takes to be the first."""
    return group["template"]["spec"]["containers"][0]


def serve_config(objects: list[Object]) -> Object:
    """What Serve is told to run."""
    return yaml.safe_load(only(objects, "RayService")["spec"]["serveConfigV2"])


def application(objects: list[Object]) -> Object:
    """The one application of it."""
    [app] = serve_config(objects)["applications"]
    return app


def matches(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a Kubernetes label selector takes these labels."""
    if any(labels.get(k) != v for k, v in selector.get("matchLabels", {}).items()):
        return False
    for rule in selector.get("matchExpressions", ()):
        has = rule["key"] in labels
        among = labels.get(rule["key"]) in rule.get("values", ())
        if not {"In": has and among, "Exists": has}[rule["operator"]]:
            return False
    return True


_UNITS = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def quantity(text: Any) -> float:
    """A Kubernetes quantity as a number: bytes, cores, pieces."""
    number, unit = re.fullmatch(r"([\d.]+)([a-zA-Z]*)", str(text)).groups()
    return float(number) * _UNITS[unit]
