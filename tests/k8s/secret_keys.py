"""Tests' view of k8s/make_secrets.py: which Secrets there are, and their keys."""

import datetime
import importlib.util
from types import ModuleType

from tests.k8s.manifests import K8S


def make_secrets() -> ModuleType:
    """The script as a module; it lies in no package."""
    spec = importlib.util.spec_from_file_location("make_secrets", K8S / "make_secrets.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made_secrets() -> dict[str, dict[str, str]]:
    """The data of every Secret, made anew."""
    now = datetime.datetime.now(datetime.UTC)
    return {name: make() for name, make in make_secrets().makers("pagoda", now=now).items()}
