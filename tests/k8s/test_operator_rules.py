"""What KubeRay's operator refuses although the schema takes it (its webhook-like checks, v1.7)."""

import re

import pytest

from tests.k8s.manifests import OVERLAYS, containers, groups, only, ray_cluster, rendered

# The operator sets these; in a pod template they are refused, or would win over its own.
OF_THE_OPERATOR = {
    *("RAY_REDIS_ADDRESS", "REDIS_PASSWORD", "REDIS_USERNAME", "RAY_enable_autoscaler_v2"),
    *("RAY_USE_TLS", "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"),
    *("RAY_AUTH_TOKEN", "RAY_gcs_storage", "RAY_gcs_storage_path"),
}
LONGEST_NAME = 47


@pytest.fixture(params=OVERLAYS)
def objects(request):
    return rendered(request.param)


def test_the_service_has_a_name_that_leaves_room_for_what_is_put_behind_it(objects):
    assert len(only(objects, "RayService")["metadata"]["name"]) <= LONGEST_NAME


def test_no_pod_sets_what_the_operator_sets(objects):
    data = only(objects, "ConfigMap", "pagoda-ray-environment")["data"]
    assert not OF_THE_OPERATOR & set(data)
    for group in groups(objects).values():
        for container in containers(group["template"]):
            names = {entry["name"] for entry in container.get("env", ())}
            paths = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert not OF_THE_OPERATOR & names
            assert "/etc/ray/tls" not in paths
        volumes = {volume["name"] for volume in group["template"]["spec"]["volumes"]}
        assert not {"ray-tls", "ray-token", "gcs-storage"} & volumes


def test_the_second_autoscaler_finds_pods_that_are_not_restarted_in_place(objects):
    cluster = ray_cluster(objects)
    assert cluster["enableInTreeAutoscaling"] is True
    assert cluster["autoscalerOptions"]["version"] == "v2"
    for group in groups(objects).values():
        assert group["template"]["spec"].get("restartPolicy", "Never") == "Never"


def test_groups_have_bounds_in_order_and_names_that_a_label_can_hold(objects):
    for group in ray_cluster(objects)["workerGroupSpecs"]:
        assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", group["groupName"])


def test_resources_and_labels_of_groups_are_given_in_one_way(objects):
    for group in groups(objects).values():
        assert "labels" not in group["rayStartParams"]
        assert not ("resources" in group and "resources" in group["rayStartParams"])


def test_rays_memory_is_told_in_the_one_way_that_may_be(objects):
    cluster = ray_cluster(objects)
    assert "ray.io/ft-enabled" not in only(objects, "RayService")["metadata"]["annotations"]
    assert "redis-password" not in cluster["headGroupSpec"]["rayStartParams"]
    assert "storage" not in cluster["gcsFaultToleranceOptions"]


def test_token_auth_says_for_which_ray(objects):
    version = tuple(map(int, ray_cluster(objects)["rayVersion"].split(".")))
    # 2.52 knows tokens; 2.53 the health endpoint that the probes ask.
    assert version >= (2, 53, 0)


def test_an_incremental_upgrade_has_all_that_it_needs(objects):
    strategy = only(objects, "RayService")["spec"]["upgradeStrategy"]
    if strategy["type"] != "NewClusterWithIncrementalUpgrade":
        assert strategy == {"type": "NewCluster"}
        return
    options = strategy["clusterUpgradeOptions"]
    assert ray_cluster(objects)["enableInTreeAutoscaling"]
    assert options["gatewayClassName"]
    assert 0 < options["stepSizePercent"] <= options["maxSurgePercent"] <= 100
    assert options["intervalSeconds"] > 0


def test_the_cluster_itself_has_no_upgrade_strategy(objects):
    assert "upgradeStrategy" not in ray_cluster(objects)


def test_ray_is_the_first_container(objects):
    for group in groups(objects).values():
        first = group["template"]["spec"]["containers"][0]
        assert first["name"] == "ray"
        assert "command" not in first
