"""Kustomize and Helm make the same objects, and what is derived is what its source makes."""

import importlib.util
import os
import re

import pytest
import yaml

from tests.k8s.kustomize import render
from tests.k8s.manifests import K8S, OVERLAYS, only
from tests.k8s.tools import VALUES, helm_template, kubectl_kustomize, run


def by_name(objects):
    """Objects by kind and name, with Serve's config as what it says and not as its text."""
    for item in objects:
        if item["kind"] == "RayService":
            item["spec"]["serveConfigV2"] = yaml.safe_load(item["spec"]["serveConfigV2"])
    return {(o["kind"], o["metadata"]["name"]): o for o in objects}


@pytest.mark.slow
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubectl_renders_what_our_own_renderer_does(overlay):
    folder = K8S / "overlays" / overlay
    assert by_name(kubectl_kustomize(folder)) == by_name(render(folder))


@pytest.mark.slow
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_helm_renders_the_same_objects_as_kustomize(overlay):
    of_helm, of_kustomize = (
        by_name(helm_template(*VALUES[overlay])),
        by_name(render(K8S / "overlays" / overlay)),
    )
    assert set(of_helm) == set(of_kustomize)
    for key, item in of_kustomize.items():
        assert of_helm[key] == item


@pytest.mark.slow
def test_an_external_store_leaves_the_valkey_of_blocks_out_in_both(tmp_path):
    ours = os.path.relpath(K8S, tmp_path.resolve())
    plan = {
        "resources": [f"{ours}/overlays/cpu-demo"],
        "components": [f"{ours}/components/external-store"],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(plan))
    rendered = by_name(kubectl_kustomize(tmp_path.resolve()))
    assert rendered == by_name(render(tmp_path.resolve()))
    assert not [name for name in rendered if name[1] == "valkey-blocks"]
    assert ("StatefulSet", "valkey-gcs") in rendered
    of_helm = by_name(helm_template(*VALUES["cpu-demo"], "--set", "blocks.valkey=false"))
    assert not [name for name in of_helm if name[1] == "valkey-blocks"]


@pytest.mark.slow
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_helm_finds_nothing_to_complain_about(overlay):
    checked = run("helm", "lint", "--strict", str(K8S / "chart"), *VALUES[overlay])
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    [
        "image=ghcr.io/pagoda-serve/pagoda:latest",
        "image=ghcr.io/pagoda-serve/pagoda",
        "upgrade.type=Sometimes",
        "blocks.maxmemory=48",
        "replicaCount=3",
        "secrets.rayToken=Not_A_Name",
        "workers=null",
    ],
)
def test_a_value_that_the_schema_does_not_know_is_refused(value):
    done = run("helm", "template", "pagoda", str(K8S / "chart"), "--set", value)
    assert done.returncode != 0
    assert "specifications of the schema" in done.stderr


@pytest.mark.slow
def test_another_name_of_a_secret_goes_everywhere():
    objects = helm_template("--set", "secrets.peerTls=pagoda-peer-tls-2")
    text = yaml.safe_dump(only(objects, "RayService"))
    assert "pagoda-peer-tls-2" in text
    assert not re.search(r"pagoda-peer-tls$", text, re.MULTILINE)


def test_wrapped_and_copied_files_are_what_their_sources_make():
    spec = importlib.util.spec_from_file_location("assemble", K8S / "assemble.py")
    assemble = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(assemble)
    made = assemble.outputs()
    for path, text in made.items():
        assert path.read_text() == text, "run: python k8s/assemble.py"
    assert {*(K8S / "chart" / "files").rglob("*.yaml")} <= set(made)


def test_files_are_named_for_what_they_hold():
    for folder in ("base", "components/monitoring", "components/external-store", "overlays/gpu"):
        for path in (K8S / folder).glob("*-*.yaml"):
            if path.name == "serve-config.yaml":
                continue
            documents = [d for d in yaml.safe_load_all(path.read_text()) if d]
            kinds = {d["kind"].lower() for d in documents if isinstance(d, dict)}
            assert kinds <= {path.name.partition("-")[0]}, path
