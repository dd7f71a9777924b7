"""Whatever a manifest names exists: Secrets and their keys, ConfigMaps, claims, ports, pods."""

import re

import pytest

from tests.k8s.manifests import (
    OVERLAYS,
    containers,
    groups,
    matches,
    only,
    pod_templates,
    ray_cluster,
    rendered,
)
from tests.k8s.references import missing, references, selected, unmounted
from tests.k8s.secret_keys import made_secrets


@pytest.fixture(scope="module")
def secrets():
    return {name: set(data) for name, data in made_secrets().items()}


@pytest.fixture(params=OVERLAYS)
def objects(request):
    return rendered(request.param)


def test_every_secret_configmap_claim_and_account_exists(objects, secrets):
    assert len(references(objects)) > 12
    assert missing(objects, secrets) == set()


def test_every_secret_that_is_made_is_used(objects, secrets):
    used = {name for kind, name, _ in references(objects) if kind == "Secret"}
    assert used == set(secrets)


@pytest.mark.parametrize("gone", ["pagoda-ray-token", "pagoda-peer-tls", "pagoda-valkey-gcs"])
def test_a_secret_that_is_missing_is_noticed(gone, secrets):
    left = {name: keys for name, keys in secrets.items() if name != gone}
    assert gone in {name for _, name, _ in missing(rendered("cpu-demo"), left)}


def test_a_key_or_a_configmap_that_is_missing_is_noticed(secrets):
    objects = rendered("cpu-demo")
    fewer = {**secrets, "pagoda-api-keys": {"metrics-key"}}
    assert missing(objects, fewer) == {("Secret", "pagoda-api-keys", "api-keys")}
    kept = [o for o in objects if o["metadata"]["name"] != "pagoda-ray-environment"]
    assert missing(kept, secrets) == {("ConfigMap", "pagoda-ray-environment", "")}


def test_every_mounted_volume_is_one_of_the_pod(objects):
    claimed = {
        o["metadata"]["name"]: {c["metadata"]["name"] for c in o["spec"]["volumeClaimTemplates"]}
        for o in objects
        if o["kind"] == "StatefulSet" and "volumeClaimTemplates" in o["spec"]
    }
    for name, template in pod_templates(objects).items():
        assert unmounted(template, claimed.get(name, set())) == set(), name


def test_every_image_is_pinned(objects):
    for template in pod_templates(objects).values():
        for container in containers(template):
            assert re.fullmatch(r"[\w./-]+\.\w+/[\w./-]+:v?\d[\w.-]+", container["image"])


def test_every_pod_of_ray_has_the_same_image(objects):
    images = {c["image"] for g in groups(objects).values() for c in containers(g["template"])}
    assert len(images) == 1


def test_every_service_finds_pods_that_have_its_ports(objects):
    for service in (o for o in objects if o["kind"] == "Service"):
        names = selected(objects, {"matchLabels": service["spec"]["selector"]})
        assert len(names) == 1, service["metadata"]["name"]
        template = pod_templates(objects)[names.pop()]
        ports = {p["name"] for c in containers(template) for p in c.get("ports", ())}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_every_disruption_budget_covers_pods_of_one_kind_and_no_pod_is_left_out(objects):
    budgets = [o for o in objects if o["kind"] == "PodDisruptionBudget"]
    covered = [selected(objects, budget["spec"]["selector"]) for budget in budgets]
    assert sorted(name for names in covered for name in names) == sorted(pod_templates(objects))


def test_stateful_sets_name_a_service_that_exists(objects):
    for item in (o for o in objects if o["kind"] == "StatefulSet"):
        only(objects, "Service", item["spec"]["serviceName"])
        labels = item["spec"]["template"]["metadata"]["labels"]
        assert item["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_stores_are_reached_by_names_of_their_services(objects):
    cluster = ray_cluster(objects)
    [host] = re.findall(
        r"rediss://([\w-]+):6379", cluster["gcsFaultToleranceOptions"]["redisAddress"]
    )
    only(objects, "Service", host)
    [host] = re.findall(r"@([\w-]+):6379", made_secrets()["pagoda-valkey-blocks"]["url"])
    only(objects, "Service", host)
    for template in pod_templates(objects).values():
        for container in containers(template):
            for entry in container.get("env", ()):
                if entry["name"] == "REDIS_ADDR":
                    only(objects, "Service", entry["value"].split("//")[1].split(":")[0])


def test_rays_memory_and_the_blocks_are_apart(objects):
    assert "valkey-gcs" in ray_cluster(objects)["gcsFaultToleranceOptions"]["redisAddress"]
    assert "valkey-blocks" in made_secrets()["pagoda-valkey-blocks"]["url"]


def test_monitors_find_what_they_scrape():
    objects = rendered("gpu")
    for monitor in (o for o in objects if o["kind"] == "ServiceMonitor"):
        services = [
            o
            for o in objects
            if o["kind"] == "Service"
            and matches(monitor["spec"]["selector"], o["metadata"]["labels"])
        ]
        assert services, monitor["metadata"]["name"]
        for endpoint in monitor["spec"]["endpoints"]:
            for service in services:
                assert endpoint["port"] in {p["name"] for p in service["spec"]["ports"]}
    [monitor] = [o for o in objects if o["kind"] == "PodMonitor"]
    assert selected(objects, monitor["spec"]["selector"]) == {"head", "mixed"}
    for name in ("head", "mixed"):
        ports = {
            p["name"] for p in groups(objects)[name]["template"]["spec"]["containers"][0]["ports"]
        }
        assert {e["port"] for e in monitor["spec"]["podMetricsEndpoints"]} <= ports


def test_one_endpoint_alone_is_scraped_for_the_clusters_figures():
    objects = rendered("gpu")
    monitor = only(objects, "ServiceMonitor", "pagoda")
    assert monitor["spec"]["endpoints"][0]["path"] == "/metrics"
    service = only(objects, "Service", "pagoda-metrics")
    assert selected(objects, {"matchLabels": service["spec"]["selector"]}) == {"head"}
