"""Every pod passes Pod Security `restricted`, in a namespace that enforces it."""

import pytest

from tests.k8s.manifests import OVERLAYS, containers, only, pod_templates, ray_cluster, rendered
from tests.k8s.pod_security import violations


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_pod_passes_restricted(overlay):
    for name, template in pod_templates(rendered(overlay)).items():
        assert violations(template) == [], name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_autoscaler_that_kuberay_adds_passes_too(overlay):
    cluster = ray_cluster(rendered(overlay))
    head = cluster["headGroupSpec"]["template"]
    context = cluster["autoscalerOptions"]["securityContext"]
    head["spec"]["containers"].append({"name": "autoscaler", "securityContext": context})
    assert violations(head) == []


def test_the_namespace_enforces_it():
    labels = only(rendered("gpu"), "Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        ("pod", {"runAsNonRoot": False}, "runAsNonRoot"),
        ("pod", {"seccompProfile": {"type": "Unconfined"}}, "seccompProfile"),
        ("pod", {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}, "sysctl"),
        ("container", {"allowPrivilegeEscalation": True}, "allowPrivilegeEscalation"),
        ("container", {"capabilities": {"drop": []}}, "capabilities"),
        ("container", {"privileged": True}, "privileged"),
    ],
)
def test_a_pod_that_may_more_is_noticed(place, value, complaint):
    template = pod_templates(rendered("cpu-demo"))["mixed"]
    target = template["spec"] if place == "pod" else next(containers(template))
    target["securityContext"].update(value)
    assert any(complaint in found for found in violations(template))


def test_no_pod_of_ours_holds_a_kubernetes_token_but_the_heads():
    for name, template in pod_templates(rendered("gpu")).items():
        assert name == "head" or template["spec"]["automountServiceAccountToken"] is False
