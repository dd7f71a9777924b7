"""Writes the manifests that only wrap or copy another file: `python k8s/assemble.py`.

Kustomize and Helm read nothing outside their own folders, so rules and boards have to be wrapped
into objects, and what has no parameters has to lie in the chart a second time. Tests check that the
files are what this makes.
"""

import json
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent
MONITORING = FOLDER / "components" / "monitoring"
CHART_FILES = FOLDER / "chart" / "files"

# Objects of the base and of components that an installation never changes.
STATIC = {
    "base": [
        "configmap-ray-environment.yaml",
        "configmap-valkey-blocks.yaml",
        "configmap-valkey-gcs.yaml",
        "networkpolicy-default.yaml",
        "networkpolicy-ray.yaml",
        "networkpolicy-valkey.yaml",
        "poddisruptionbudget-ray.yaml",
        "poddisruptionbudget-valkey.yaml",
        "service-metrics.yaml",
        "service-valkey.yaml",
        "serviceaccount-pagoda.yaml",
    ],
    "monitoring": [
        "configmap-dashboards.yaml",
        "podmonitor-ray.yaml",
        "prometheusrule-pagoda.yaml",
        "servicemonitor-pagoda.yaml",
        "servicemonitor-valkey.yaml",
    ],
    "gateway": ["networkpolicy-gateway.yaml"],
}
_FOLDERS = {
    "base": FOLDER / "base",
    "monitoring": MONITORING,
    "gateway": FOLDER / "overlays" / "gpu",
}
_LABELS = {"app.kubernetes.io/part-of": "pagoda"}


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as it reads."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def prometheus_rule() -> str:
    """k8s/prometheus/rules.yaml as the object that the Prometheus operator takes."""
    rules = yaml.safe_load((FOLDER / "prometheus" / "rules.yaml").read_text())
    return _written(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": "pagoda", "labels": _LABELS},
            "spec": rules,
        }
    )


def dashboards() -> str:
    """The Grafana boards as a ConfigMap, with the label that Grafana's sidecar looks for."""
    boards = sorted((FOLDER / "dashboards").glob("*.json"))
    return _written(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": "pagoda-dashboards",
                "labels": _LABELS | {"grafana_dashboard": "1"},
            },
            # Without spaces: both boards together have to stay below a ConfigMap's 1 MiB.
            "data": {
                board.name: json.dumps(json.loads(board.read_text()), separators=(",", ":"))
                for board in boards
            },
        }
    )


def outputs() -> dict[Path, str]:
    """Every file that this makes, and what belongs in it."""
    made = {
        MONITORING / "prometheusrule-pagoda.yaml": prometheus_rule(),
        MONITORING / "configmap-dashboards.yaml": dashboards(),
    }
    for group, names in STATIC.items():
        for name in names:
            source = _FOLDERS[group] / name
            made[CHART_FILES / group / name] = made.get(source) or source.read_text()
    return made


def _written(document: dict[str, Any]) -> str:
    heading = "# Made by k8s/assemble.py; change its source.\n"
    return heading + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=100)


if __name__ == "__main__":
    for path, text in outputs().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
