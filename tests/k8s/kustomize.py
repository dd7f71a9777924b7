"""Renders our overlays without kubectl: the part of Kustomize that they use, and an error for more.

A test compares it with kubectl's own output, where kubectl can be had.
"""

import copy
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
_KNOWN = {
    *("apiVersion", "kind", "namespace", "resources", "components"),
    *("configMapGenerator", "patches", "replacements"),
}


def render(folder: Path) -> list[Object]:
    """The objects of an overlay, as `kubectl kustomize` prints them, in no particular order."""
    objects = _accumulate(folder, [])
    return [o for o in objects if not _is_local(o)]


def _is_local(item: Object) -> bool:
    annotations = item["metadata"].get("annotations", {})
    return annotations.get("config.kubernetes.io/local-config") == "true"


def _accumulate(folder: Path, objects: list[Object]) -> list[Object]:
    plan = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(plan) <= _KNOWN, f"{folder}: {set(plan) - _KNOWN}"
    for name in plan.get("resources", ()):
        path = folder / name
        objects = [*objects, *(_accumulate(path, []) if path.is_dir() else load(path))]
    for entry in plan.get("configMapGenerator", ()):
        made = _config_map(folder, entry)
        if entry.get("behavior") == "replace":
            objects = [o for o in objects if _key(o) != _key(made)]
        assert _key(made) not in map(_key, objects)
        objects = [*objects, made]
    for name in plan.get("components", ()):
        objects = _accumulate(folder / name, objects)
    for patch in plan.get("patches", ()):
        objects = _patched(objects, patch, folder)
    for replacement in plan.get("replacements", ()):
        _replace(objects, replacement)
    if "namespace" in plan:
        for item in objects:
            item["metadata"]["namespace"] = plan["namespace"]
    return objects


def load(path: Path) -> list[Object]:
    """Every object of a file."""
    return [o for o in yaml.safe_load_all(path.read_text()) if o]


def _config_map(folder: Path, entry: Object) -> Object:
    metadata = {"name": entry["name"], "annotations": entry["options"]["annotations"]}
    data = {name: (folder / name).read_text() for name in entry["files"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _patched(objects: list[Object], patch: Object, folder: Path) -> list[Object]:
    if "path" not in patch:
        gone = yaml.safe_load(patch["patch"])
        assert gone.get("$patch") == "delete"
        key = (gone["kind"], gone["metadata"]["name"])
        assert key in map(_key, objects), f"{key} is not there to be deleted"
        return [o for o in objects if _key(o) != key]
    target = (patch["target"]["kind"], patch["target"]["name"])
    [item] = [o for o in objects if _key(o) == target]
    for step in yaml.safe_load((folder / patch["path"]).read_text()):
        _apply(item, step)
    return objects


def _key(item: Object) -> tuple[str, str]:
    return item["kind"], item["metadata"]["name"]


def _apply(item: Object, step: Object) -> None:
    """One step of a JSON patch (RFC 6902)."""
    above, last = _place(item, step["path"])
    if step["op"] == "copy":
        source, name = _place(item, step["from"])
        value = copy.deepcopy(source[name])
    else:
        value = copy.deepcopy(step["value"])
    if isinstance(above, list) and last == "-":
        above.append(value)
        return
    assert step["op"] in ("add", "copy") or _has(above, last), f"{step['path']} is not there"
    above[last] = value


def _has(above: Any, last: Any) -> bool:
    return last < len(above) if isinstance(above, list) else last in above


def _place(item: Any, path: str) -> tuple[Any, Any]:
    *way, last = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]
    for part in way:
        item = item[int(part) if isinstance(item, list) else part]
    return item, int(last) if isinstance(item, list) and last != "-" else last


def _replace(objects: list[Object], replacement: Object) -> None:
    source = replacement["source"]
    [found] = [o for o in objects if _key(o) == (source["kind"], source["name"])]
    field = source["fieldPath"].removeprefix("data.[").removesuffix("]")
    for target in replacement["targets"]:
        [item] = [o for o in objects if _key(o) == tuple(target["select"].values())]
        for path in target["fieldPaths"]:
            above, last = _place(item, "/" + path.replace(".", "/"))
            above[last] = found["data"][field]
