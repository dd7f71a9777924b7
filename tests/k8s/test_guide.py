"""The guide names what is there: files, secrets with their keys, labels, values, times."""

import re

import pytest

from cluster.metrics.catalogue import METRICS
from tests.k8s.manifests import K8S, OVERLAYS, ROOT, groups, rendered
from tests.k8s.secret_keys import made_secrets

TEXT = (ROOT / "docs" / "kubernetes.md").read_text()


def test_every_file_that_is_named_exists():
    named = set(re.findall(r"`((?:k8s|cluster|tests|docs)/[\w./-]+)`", TEXT))
    named |= set(re.findall(r"(?:-f|-k|python) ((?:k8s)/[\w./-]+)", TEXT))
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_table_of_secrets_is_that_of_the_script():
    rows = re.findall(r"^\s*\| `(pagoda-[\w-]+)` \| (.+?) \|", TEXT, re.MULTILINE)
    told = {name: set(re.findall(r"`([\w.-]+)`", keys)) for name, keys in rows}
    optional = {"pagoda-model-hub"}
    made = {name: set(data) for name, data in made_secrets().items()}
    assert set(told) - optional == set(made)
    for name, keys in made.items():
        assert told[name] in (keys, set()), name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_is_told_of(overlay):
    assert f"k8s/overlays/{overlay}" in TEXT


def test_the_namespaces_that_are_let_in_are_those_of_the_policies():
    told = set(re.findall(r"pagoda\.dev/access=(\w+)", TEXT))
    used = set(re.findall(r"pagoda\.dev/access': '(\w+)'", str(rendered("gpu"))))
    assert told == used


def test_times_are_those_of_the_manifests():
    [worker] = [g for name, g in groups(rendered("gpu")).items() if name != "head"]
    grace_s = worker["template"]["spec"]["terminationGracePeriodSeconds"]
    assert f"`terminationGracePeriodSeconds` ({grace_s:,})" in TEXT


def test_the_metrics_of_the_inference_contract_are_there():
    contract = set(re.findall(r"`(vllm:\w+)`", TEXT))
    assert len(contract) == 4
    assert contract <= set(METRICS)
    assert {"block_size", "num_gpu_blocks"} <= set(METRICS["vllm:cache_config_info"].every_label)
    kinds = {METRICS[name].kind for name in contract}
    assert kinds == {"gauge"}


def test_helm_values_that_are_named_exist():
    import yaml

    values = yaml.safe_load((K8S / "chart" / "values.yaml").read_text())
    for path in re.findall(r"--set ([a-z]\w+(?:\.\w+)+)=", TEXT):
        if path.startswith("featureGates"):
            continue
        place = values
        for part in path.split("."):
            place = place[part]
