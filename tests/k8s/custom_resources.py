"""Checks custom resources as an API server would: CRD schemas, strictly, and their CEL rules.

The CRDs lie in a folder `shared/k8s` beside the checkout; without it these checks are skipped.
"""

import glob
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tests.k8s.kustomize import Object
from tests.k8s.manifests import ROOT

SHARED = ROOT.parent / "shared" / "k8s"
NO_CRDS = "the CRDs (shared/k8s beside the checkout) are not here: custom resources are not checked"
_BUILT_IN = ("networking.k8s.io/", "policy/", "apps/")
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule and the path of the values that it speaks about: names, "*" for each of them."""

    path: tuple[str, ...]
    text: str


class CustomResources:
    """Every CRD of a folder with schemas/ and crds/."""

    def __init__(self, folder: Path) -> None:
        self._schemas: dict[Key, jsonschema.Draft7Validator] = {}
        self.rules: dict[Key, list[Rule]] = {}
        for name in glob.glob(str(folder / "schemas" / "*.json")):
            schema = json.loads(Path(name).read_text())
            named = schema["properties"]
            key = (named["apiVersion"]["const"], named["kind"]["const"])
            self._schemas[key] = jsonschema.Draft7Validator(schema)
        self._folder = folder / "crds"

    def load_rules(self, kinds: set[str]) -> None:
        """Read the CEL rules of these kinds; a CRD is a megabyte of YAML."""
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        for path in self._folder.glob("*.yaml"):
            if not any(f"{kind.lower()}s.yaml" in path.name for kind in kinds):
                continue
            for crd in yaml.load_all(path.read_text(), loader):
                spec = crd["spec"]
                for version in spec["versions"]:
                    key = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
                    self.rules[key] = list(_rules(version["schema"]["openAPIV3Schema"]))

    def knows(self, item: Object) -> bool:
        return _key(item) in self._schemas

    def complaints(self, item: Object) -> list[str]:
        """What an API server would refuse the object for; empty if it would take it."""
        item = _without_nulls(item)
        found = [
            f"{'/'.join(map(str, error.path))}: {error.message[:200]}"
            for error in self._schemas[_key(item)].iter_errors(item)
        ]
        for rule in self.rules.get(_key(item), ()):
            found += [
                f"{'.'.join(rule.path)}: {rule.text}"
                for value in _at(item, rule.path)
                if not _holds(rule.text, value)
            ]
        return found


def is_custom(item: Object) -> bool:
    """Whether a CRD says what the object may be, and not Kubernetes itself."""
    return "/" in item["apiVersion"] and not item["apiVersion"].startswith(_BUILT_IN)


def _key(item: Object) -> Key:
    return item["apiVersion"], item["kind"]


def _rules(schema: Any, path: tuple[str, ...] = ()) -> Iterator[Rule]:
    for rule in schema.get("x-kubernetes-validations", ()):
        # A rule of a change needs the object as it was before.
        if "oldSelf" not in rule["rule"]:
            yield Rule(path, rule["rule"])
    for name, below in schema.get("properties", {}).items():
        yield from _rules(below, (*path, name))
    for each in ("items", "additionalProperties"):
        if isinstance(schema.get(each), dict):
            yield from _rules(schema[each], (*path, "*"))


def _at(value: Any, path: tuple[str, ...]) -> Iterator[Any]:
    if not path:
        yield value
    elif path[0] == "*":
        for below in value.values() if isinstance(value, dict) else value:
            yield from _at(below, path[1:])
    elif isinstance(value, dict) and path[0] in value:
        yield from _at(value[path[0]], path[1:])


def _holds(rule: str, value: Any) -> bool:
    import cel

    return bool(cel.evaluate(rule, {"self": value}))


def _without_nulls(value: Any) -> Any:
    """An API server drops them before it looks."""
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value
