"""Finds what rendered objects name and nobody makes: ConfigMaps, Secrets, claims, accounts."""

from collections.abc import Iterator
from typing import Any

from tests.k8s.kustomize import Object
from tests.k8s.manifests import containers, matches, pod_templates

# Kind, name, and the key in it where one is named.
Reference = tuple[str, str, str]


def references(objects: list[Object]) -> set[Reference]:
    """Everything that must exist for the pods to start; what is optional is left out."""
    found: set[Reference] = set()
    for item in objects:
        found.update(_named_in(item))
    return found


def missing(objects: list[Object], secrets: dict[str, set[str]]) -> set[Reference]:
    """References that lead nowhere. secrets: the keys of each Secret, which are made apart."""
    made = {(o["kind"], o["metadata"]["name"]): o for o in objects}
    lost = set()
    for kind, name, key in references(objects):
        if kind == "Secret":
            is_there = name in secrets and (not key or key in secrets[name])
        else:
            item = made.get((kind, name))
            is_there = item is not None and (not key or key in item.get("data", {}))
        if not is_there:
            lost.add((kind, name, key))
    return lost


def _named_in(value: Any) -> Iterator[Reference]:
    if isinstance(value, list):
        for below in value:
            yield from _named_in(below)
    if not isinstance(value, dict):
        return
    for key, below in value.items():
        if isinstance(below, dict) and not below.get("optional"):
            yield from _direct(key, below)
        if key == "serviceAccountName":
            yield "ServiceAccount", below, ""
        if key == "authOptions":
            yield "Secret", below["secretName"], "auth_token"
        yield from _named_in(below)


def _direct(key: str, below: Object) -> Iterator[Reference]:
    if key == "secretKeyRef" or (key == "credentials" and "key" in below):
        yield "Secret", below["name"], below["key"]
    elif key == "configMapKeyRef":
        yield "ConfigMap", below["name"], below["key"]
    elif key == "configMapRef":
        yield "ConfigMap", below["name"], ""
    elif key == "persistentVolumeClaim" and "claimName" in below:
        yield "PersistentVolumeClaim", below["claimName"], ""
    elif key == "secret" and "secretName" in below:
        yield from (("Secret", below["secretName"], k) for k in _keys(below))
    elif key == "configMap" and "name" in below:
        yield from (("ConfigMap", below["name"], k) for k in _keys(below))


def _keys(source: Object) -> list[str]:
    return [item["key"] for item in source.get("items", ())] or [""]


def unmounted(template: Object, claims: set[str]) -> set[str]:
    """Volumes that a container mounts and the pod does not have. claims: of its StatefulSet."""
    volumes = claims | {volume["name"] for volume in template["spec"].get("volumes", ())}
    mounts = {m["name"] for c in containers(template) for m in c.get("volumeMounts", ())}
    return mounts - volumes


def selected(objects: list[Object], selector: Object) -> set[str]:
    """Names of the pod templates whose pods a selector takes."""
    return {
        name
        for name, template in pod_templates(objects).items()
        if matches(selector, template["metadata"]["labels"])
    }
