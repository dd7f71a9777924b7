"""Finds kubectl and helm for tests, fetching them once where the machine has neither."""

import functools
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.k8s.kustomize import Object
from tests.k8s.manifests import K8S, ROOT

FOLDER = ROOT / ".cache" / "k8s-tools"
# Whose schemas built-in objects are checked against.
KUBERNETES = "1.35"
# The chart's default values are those of the overlay gpu.
VALUES = {
    "cpu-demo": ["-f", str(K8S / "chart" / "values-cpu-demo.yaml")],
    "gpu": [],
    "gpu-disaggregated": ["-f", str(K8S / "chart" / "values-gpu-disaggregated.yaml")],
}


@functools.cache
def tool(name: str) -> str | None:
    """Path of the tool; None if it cannot be had."""
    ours = FOLDER / name
    if not ours.is_file():
        _try_to_fetch()
    return str(ours) if ours.is_file() else shutil.which(name)


@functools.cache
def _try_to_fetch() -> None:
    spec = importlib.util.spec_from_file_location("fetch_tools", K8S / "fetch_tools.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        module.fetch(FOLDER)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"kubectl and helm were not fetched: {error}")


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end; the test is skipped where there is none."""
    path = tool(name)
    if path is None:
        pytest.skip(f"{name} is not installed, and could not be fetched (k8s/fetch_tools.py)")
    return subprocess.run(
        [path, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def objects_from(done: subprocess.CompletedProcess[str]) -> list[Object]:
    """The objects that a tool printed."""
    assert done.returncode == 0, done.stderr
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [o for o in yaml.load_all(done.stdout, loader) if o]


def kubectl_kustomize(folder: Path) -> list[Object]:
    """An overlay as kubectl renders it."""
    return objects_from(run("kubectl", "kustomize", str(folder)))


def helm_template(*arguments: str) -> list[Object]:
    """The chart as helm renders it."""
    chart = str(K8S / "chart")
    return objects_from(run("helm", "template", "pagoda", chart, "-n", "pagoda", *arguments))
