"""What manifests say and what the code says is the same: settings, ports, times, sizes, names."""

import hashlib
import inspect
import json
import re

import pytest

from cluster import app as cluster_app
from cluster.config import ClusterConfig
from cluster.config_loading import builder_config, public_settings, variable
from cluster.kubernetes import drain_node, model_volume
from cluster.peer_tls import PEER_NAME
from cluster.ray_settings import LONGEST_STREAM_S, RAY_SETTINGS
from cluster.settings import SettingError
from tests.k8s.manifests import (
    OVERLAYS,
    PART_OF,
    application,
    containers,
    groups,
    only,
    pod_templates,
    quantity,
    ray_cluster,
    ray_container,
    rendered,
    serve_config,
)
from tests.k8s.secret_keys import made_secrets, make_secrets
from tests.k8s.sizes import MODELS, replica_bytes, token_bytes, weight_bytes, worker_bytes

# Differs in a cluster, with its reason beside it in the ConfigMap.
OWN_VALUES = {"RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "30"}


@pytest.fixture(params=OVERLAYS)
def objects(request):
    return rendered(request.param)


def environment(objects):
    """The variables that a pod gives the builder, with made-up secrets in them."""
    secrets = made_secrets()
    found = dict(only(objects, "ConfigMap", "pagoda-ray-environment")["data"])
    for entry in ray_container(groups(objects)["head"])["env"]:
        if "value" in entry:
            found[entry["name"]] = entry["value"]
        else:
            source = entry["valueFrom"]["secretKeyRef"]
            found[entry["name"]] = secrets[source["name"]][source["key"]]
    return found


def config(objects) -> ClusterConfig:
    return builder_config(application(objects)["args"], environment(objects))


def workers(objects):
    return {name: group for name, group in groups(objects).items() if name != "head"}


def model_options(group):
    [init] = group["template"]["spec"]["initContainers"]
    return dict(word.removeprefix("--").split("=", 1) for word in init["args"])


def test_the_arguments_are_settings_of_the_code(objects):
    found = config(objects)
    assert found.engine.model == "/run/pagoda/model"
    assert found.gateway.api_keys
    assert found.store.redis_url.startswith("rediss://")


def test_a_misspelt_setting_is_refused(objects):
    args = application(objects)["args"]
    args["engine"]["num_thread"] = 3
    with pytest.raises(SettingError, match="num_thread"):
        builder_config(args, {})


def test_no_secret_stands_in_the_manifest(objects):
    secret = {"gateway.api_keys", "store.redis_url"}
    args = builder_config(application(objects)["args"], {})
    assert args.gateway.api_keys == ()
    assert args.store.redis_url == ""
    assert secret <= {setting.dotted for setting in public_settings()}


def test_the_builder_is_there_and_its_deployments_have_the_names_that_are_sized(objects):
    module, _, name = application(objects)["import_path"].partition(":")
    assert module == cluster_app.__name__
    assert inspect.isfunction(getattr(cluster_app, name))
    sized = {deployment["name"] for deployment in application(objects)["deployments"]}
    assert sized <= deployment_names(config(objects))


def deployment_names(found):
    built = cluster_app.compose(found, start_engine=cluster_app.start_real_engine)
    names, waiting = set(), [built]
    while waiting:
        node = waiting.pop()
        deployment = node._bound_deployment
        names.add(deployment.name)
        bound = [*deployment.init_args, *deployment.init_kwargs.values()]
        waiting += [value for value in bound if isinstance(value, type(built))]
        for value in bound:
            if isinstance(value, dict):
                waiting += [v for v in value.values() if isinstance(v, type(built))]
    return names


def test_secrets_reach_the_builder_by_variables_that_it_reads(objects):
    read = {variable(setting) for setting in public_settings()}
    for group in groups(objects).values():
        given = {entry["name"] for entry in ray_container(group)["env"]}
        assert {"PAGODA_API_KEY", "REDIS_URL"} <= given & read


def test_every_ray_pod_has_the_same_environment(objects):
    head, *others = groups(objects).values()
    for group in others:
        assert ray_container(group)["env"] == ray_container(head)["env"]
        assert ray_container(group)["envFrom"] == ray_container(head)["envFrom"]


def test_rays_settings_are_those_of_the_code(objects):
    data = only(objects, "ConfigMap", "pagoda-ray-environment")["data"]
    for setting in RAY_SETTINGS:
        assert data[setting.name] == OWN_VALUES.get(setting.name, setting.value), setting.name


def test_a_change_of_rays_settings_rolls_the_cluster(objects):
    data = only(objects, "ConfigMap", "pagoda-ray-environment")["data"]
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    checksum = hashlib.sha256(text.encode()).hexdigest()[:16]
    for group in groups(objects).values():
        annotations = group["template"]["metadata"]["annotations"]
        assert annotations["pagoda.dev/ray-environment"] == checksum


def test_no_service_variable_is_taken_for_a_setting(objects):
    # Kubernetes would put PAGODA_PORT=tcp://... beside a Service that is named pagoda.
    for template in pod_templates(objects).values():
        assert template["spec"]["enableServiceLinks"] is False


def test_a_pod_has_longer_to_end_than_its_streams_and_its_replicas(objects):
    found = config(objects).replica
    for name, group in workers(objects).items():
        spec = group["template"]["spec"]
        command = ray_container(group)["lifecycle"]["preStop"]["exec"]["command"]
        assert command[:3] == ["python", "-m", drain_node.__name__]
        limit_s = float(command[3].removeprefix("--limit-s="))
        data = only(objects, "ConfigMap", "pagoda-ray-environment")["data"]
        assert limit_s >= float(data["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"]) == LONGEST_STREAM_S
        # Serve stops a replica shutdown_timeout_s before the limit, its successor ready or not.
        assert limit_s >= found.startup_timeout_s + longest_goodbye_s(found), name
        assert spec["terminationGracePeriodSeconds"] >= limit_s + 60


def longest_goodbye_s(replica):
    """How long Serve lets a copy go on that it has told to end."""
    return max(replica.shutdown_timeout_s, getattr(replica, "drain_timeout_s", 0.0))


def test_an_old_cluster_stays_as_long_as_the_longest_stream(objects):
    spec = only(objects, "RayService")["spec"]
    assert spec["rayClusterDeletionDelaySeconds"] >= LONGEST_STREAM_S


def test_a_start_may_take_as_long_as_the_code_allows(objects):
    item = only(objects, "RayService")
    minutes = int(item["metadata"]["annotations"]["ray.io/initializing-timeout"].rstrip("m"))
    assert minutes * 60 > config(objects).replica.startup_timeout_s
    assert (
        item["spec"]["deploymentUnhealthySecondThreshold"]
        >= config(objects).replica.startup_timeout_s
    )


def test_clients_reach_serve_where_the_pods_say(objects):
    http = serve_config(objects)["http_options"]
    assert http["host"] == "0.0.0.0"
    for group in groups(objects).values():
        assert {"name": "serve", "containerPort": http["port"]} in ray_container(group)["ports"]
    service = only(objects, "Service", "pagoda-metrics")
    assert [port["port"] for port in service["spec"]["ports"]] == [http["port"]]


def test_token_streams_are_reached_from_other_pods_and_with_certificates(objects):
    found = config(objects)
    assert found.replica.token_stream_host == "0.0.0.0"
    assert found.peers.peer_ca_file
    for group in workers(objects).values():
        mounts = {m["name"]: m["mountPath"] for m in ray_container(group)["volumeMounts"]}
        for file in (
            found.peers.peer_ca_file,
            found.peers.peer_cert_file,
            found.peers.peer_key_file,
        ):
            folder, _, name = file.rpartition("/")
            assert mounts["peer-tls"] == folder
            assert name in made_secrets()["pagoda-peer-tls"]
        assert found.store.redis_ca_file == mounts["valkey-ca"] + "/ca.crt"
    assert make_secrets().PEER_NAME == PEER_NAME


def test_the_model_is_where_serve_looks_for_it(objects):
    found = config(objects)
    for group in workers(objects).values():
        [init] = group["template"]["spec"]["initContainers"]
        assert init["command"] == ["python", "-m", model_volume.__name__]
        options = model_options(group)
        assert options["link"] == found.engine.model
        written = {m["mountPath"]: m["name"] for m in init["volumeMounts"]}
        read = {m["mountPath"]: m["name"] for m in ray_container(group)["volumeMounts"]}
        for path in (options["cache-dir"], found.engine.model.rpartition("/")[0]):
            assert written[path] == read[path]


def test_a_demo_pods_model_is_checked_by_its_fingerprint(tmp_path):
    [group] = workers(rendered("cpu-demo")).values()
    assert re.fullmatch(r"[0-9a-f]{64}", model_options(group)["fingerprint"])


def test_gateways_and_replicas_find_slots_on_workers_and_none_on_the_head(objects):
    found = config(objects).replica
    sized = {d["name"]: d for d in application(objects)["deployments"]}
    gateway_cpus = sized["gateway"]["ray_actor_options"]["num_cpus"]
    assert gateway_cpus > 0
    assert groups(objects)["head"]["rayStartParams"]["num-cpus"] == "0"
    for group in workers(objects).values():
        slots = float(group["rayStartParams"].get("num-cpus") or cpus(group, "limits"))
        assert slots >= found.num_cpus + 2 * gateway_cpus
        gpus = float(ray_container(group)["resources"]["limits"].get("nvidia.com/gpu", 0))
        assert gpus == found.num_gpus


def test_a_group_starts_with_a_worker_for_each_replica_of_its_pool(objects):
    pools = {pool.role: pool for pool in config(objects).pools()}
    assert set(pools) == set(workers(objects))
    for role, group in workers(objects).items():
        assert group["replicas"] == pools[role].num_replicas
        assert group["maxReplicas"] >= pools[role].most_replicas


def test_each_pool_is_placed_on_its_own_workers_alone():
    objects = rendered("gpu-disaggregated")
    sized = {d["name"]: d["ray_actor_options"] for d in application(objects)["deployments"]}
    for role, group in workers(objects).items():
        # KubeRay puts the text into a shell's command line, hence the quotes around it.
        slots = json.loads(json.loads(group["rayStartParams"]["resources"]))
        assert set(slots) == {role}
        assert set(sized[role]["resources"]) == {role}
        assert sized[role]["resources"][role] <= slots[role]
        [pool] = [pool for pool in config(objects).pools() if pool.role == role]
        assert sized[role]["num_gpus"] == pool.num_gpus
        assert sized[role]["num_cpus"] == pool.num_cpus
    selectors = [g["template"]["spec"]["nodeSelector"] for g in workers(objects).values()]
    assert selectors[0] != selectors[1]


def cpus(group, which):
    return quantity(ray_container(group)["resources"][which]["cpu"])


def test_an_engine_takes_no_more_threads_than_its_pod_has_cores(objects):
    threads = config(objects).engine.num_threads
    assert threads > 0, "0 takes every core of the node, not of the pod"
    for group in workers(objects).values():
        assert threads <= cpus(group, "requests")


def test_a_workers_memory_holds_what_the_code_puts_there(objects):
    found = config(objects)
    surges = {d["name"] for d in application(objects)["deployments"] if d.get("max_surge_percent")}
    for group in workers(objects).values():
        spec = model_options(group)["model"]
        resources = ray_container(group)["resources"]
        # While an update is under way the old copy stays until the new one is up.
        surge = 2 if "replica" in surges else 1
        at_rest = worker_bytes(spec, found, num_replicas=1, num_gateways=1)
        at_most = worker_bytes(spec, found, num_replicas=surge, num_gateways=2)
        assert quantity(resources["requests"]["memory"]) >= at_rest
        assert quantity(resources["limits"]["memory"]) >= at_most


def test_a_gpu_holds_the_weights_and_a_request_of_the_longest_kind():
    gpu_bytes = 80e9
    for overlay in ("gpu", "gpu-disaggregated"):
        objects = rendered(overlay)
        engine = config(objects).engine
        for group in workers(objects).values():
            spec = model_options(group)["model"]
            longest = min(engine.scheduler.max_model_len, MODELS[spec]["max_position_embeddings"])
            room = gpu_bytes * engine.gpu_memory_utilization - weight_bytes(spec)
            assert room > 4 * longest * token_bytes(spec)


def test_the_sizes_of_models_are_those_of_the_real_ones():
    assert weight_bytes("demo") == pytest.approx(268_959_744, rel=0.01)
    assert weight_bytes("Qwen/Qwen3-8B") == pytest.approx(8.19e9 * 2, rel=0.01)
    named = {model_options(g)["model"] for o in OVERLAYS for g in workers(rendered(o)).values()}
    assert named == set(MODELS)
    assert replica_bytes("demo", config(rendered("cpu-demo"))) > weight_bytes("demo")


def test_the_object_store_is_as_large_as_the_code_makes_it(objects):
    for group in groups(objects).values():
        size = int(group["rayStartParams"]["object-store-memory"])
        assert size == config(objects).ray.object_store_memory_bytes


def test_the_block_store_keeps_below_its_pods_memory_and_evicts(objects):
    container = only(objects, "StatefulSet", "valkey-blocks")["spec"]["template"]["spec"][
        "containers"
    ][0]
    number, unit = re.fullmatch(r"(\d+)(mb|gb)", container["args"][-1]).groups()
    maximum = int(number) * {"mb": 2**20, "gb": 2**30}[unit]
    assert container["args"][-2] == "--maxmemory"
    assert maximum * 1.1 < quantity(container["resources"]["limits"]["memory"])
    conf = only(objects, "ConfigMap", "valkey-blocks")["data"]["valkey.conf"]
    assert "maxmemory-policy allkeys-lru" in conf
    assert 'save ""' in conf
    assert "appendonly no" in conf


def test_rays_memory_is_never_evicted_and_written_at_once(objects):
    conf = only(objects, "ConfigMap", "valkey-gcs")["data"]["valkey.conf"]
    assert "maxmemory-policy noeviction" in conf
    assert "appendonly yes" in conf
    assert "volumeClaimTemplates" in only(objects, "StatefulSet", "valkey-gcs")["spec"]


def test_ray_is_the_version_that_the_code_is_pinned_to(objects):
    from ray import __version__

    assert ray_cluster(objects)["rayVersion"] == __version__


def test_ray_asks_for_a_token_and_encrypts_wherever_it_leaves_a_host(objects):
    cluster = ray_cluster(objects)
    assert cluster["authOptions"]["mode"] == "token"
    data = only(objects, "ConfigMap", "pagoda-ray-environment")["data"]
    assert data["RAY_SERVE_USE_GRPC_BY_DEFAULT"] == "0", "Serve's own gRPC is in clear"
    for group in workers(objects).values():
        affinity = group["template"]["spec"].get("affinity", {}).get("podAffinity", {})
        is_one_host = "requiredDuringSchedulingIgnoredDuringExecution" in affinity
        assert is_one_host or cluster["tlsOptions"]["enabled"]


def test_workers_spread_over_hosts_and_zones(objects):
    for group in workers(objects).values():
        spec = group["template"]["spec"]
        keys = [c["topologyKey"] for c in spec["topologySpreadConstraints"]]
        assert keys == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
        for constraint in spec["topologySpreadConstraints"]:
            labels = constraint["labelSelector"]["matchLabels"]
            assert labels.items() <= group["template"]["metadata"]["labels"].items()


def test_everything_bears_the_label_that_policies_and_people_look_for(objects):
    for item in objects:
        if "generated" not in item["metadata"].get("annotations", {}):
            assert PART_OF.items() <= item["metadata"]["labels"].items(), item["metadata"]["name"]


def test_what_prepares_and_drains_runs_the_image_that_serves(objects):
    for group in workers(objects).values():
        assert len({c["image"] for c in containers(group["template"])}) == 1
