"""Every object is one that an API server takes, and what it would not take is noticed here."""

import copy

import kubernetes_validate
import pytest

from tests.k8s.custom_resources import NO_CRDS, SHARED, CustomResources, is_custom
from tests.k8s.manifests import OVERLAYS, groups, only, rendered
from tests.k8s.tools import KUBERNETES

needs_crds = pytest.mark.skipif(not SHARED.is_dir(), reason=NO_CRDS)


@pytest.fixture(scope="module")
def crds():
    resources = CustomResources(SHARED)
    resources.load_rules({"RayService", "InferencePool", "ScaledObject"})
    return resources


def check_builtin(item):
    kubernetes_validate.validate(item, KUBERNETES, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_builtin_object_is_valid(overlay):
    builtin = [item for item in rendered(overlay) if not is_custom(item)]
    assert len(builtin) > 15
    for item in builtin:
        check_builtin(item)


@needs_crds
@pytest.mark.slow
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_custom_resource_is_valid(overlay, crds):
    custom = [item for item in rendered(overlay) if is_custom(item)]
    assert "RayService" in {item["kind"] for item in custom}
    for item in custom:
        assert crds.knows(item), item["apiVersion"]
        assert crds.complaints(item) == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_pod_of_a_ray_group_would_be_a_valid_pod(overlay):
    for name, group in groups(rendered(overlay)).items():
        pod = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(group["template"])}
        pod["metadata"]["name"] = name
        check_builtin(pod)


def misspell(item):
    item["spec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"


def mistype(item):
    item["spec"]["replicas"] = "one"


def forget(item):
    del item["spec"]["selector"]


@pytest.mark.parametrize("spoil", [misspell, mistype, forget])
def test_a_spoilt_builtin_object_is_refused(spoil):
    item = only(rendered("cpu-demo"), "StatefulSet", "valkey-blocks")
    check_builtin(item)
    spoil(item)
    with pytest.raises(kubernetes_validate.ValidationError):
        check_builtin(item)


@needs_crds
@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["spec", "serveConfigV3"], ""),
        (["spec", "rayClusterConfig", "headGroupSpec", "template", "spec", "contaners"], []),
        (["spec", "rayClusterConfig", "authOptions", "mode"], "tokens"),
        (["spec", "rayClusterDeletionDelaySeconds"], "an hour"),
        (["spec", "rayClusterConfig", "workerGroupSpecs", 0, "replicas"], 1.5),
        # Refused by a CEL rule alone.
        (["spec", "managedBy"], "somebody.else/operator"),
        (["spec", "rayClusterConfig", "managedBy"], "somebody.else/operator"),
    ],
)
def test_a_spoilt_ray_service_is_refused(path, value, crds):
    item = only(rendered("cpu-demo"), "RayService")
    *way, last = path
    place = item
    for part in way:
        place = place[part]
    place[last] = value
    assert crds.complaints(item)


@needs_crds
@pytest.mark.slow
def test_a_cel_rule_refuses_what_the_schema_alone_would_take(crds):
    pool = {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": "pool"},
        "spec": {
            "selector": {"matchLabels": {"app": "pagoda"}},
            "targetPorts": [{"number": 8000}, {"number": 8001}],
            "endpointPickerRef": {"name": "picker", "kind": "Service", "port": {"number": 9002}},
        },
    }
    assert crds.complaints(pool) == []
    pool["spec"]["targetPorts"][1]["number"] = 8000
    [complaint] = crds.complaints(pool)
    assert "exists_one" in complaint
