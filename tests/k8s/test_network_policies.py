"""Default deny, and exactly the ways that the service needs: who may reach whom, at which port."""

import pytest
from ray.serve._private import constants

from tests.k8s.manifests import (
    OVERLAYS,
    groups,
    matches,
    only,
    pod_templates,
    ray_container,
    rendered,
    serve_config,
)

PORTS_OF_RAY = (
    *("object-manager-port", "node-manager-port", "dashboard-agent-grpc-port"),
    *("runtime-env-agent-port", "dashboard-agent-listen-port"),
)


@pytest.fixture(params=OVERLAYS)
def objects(request):
    return rendered(request.param)


class Network:
    """Answers what a network does that obeys the policies of a namespace."""

    def __init__(self, objects):
        self._policies = [o["spec"] for o in objects if o["kind"] == "NetworkPolicy"]
        self._labels = {
            name: template["metadata"]["labels"]
            for name, template in pod_templates(objects).items()
        }

    def lets(self, source, target, port):
        """Whether a pod reaches another's TCP port: its side lets it out, the other's lets it in.

        A source that is a dict is a namespace outside, by its labels, with a pod by its own.
        """
        outside = isinstance(source, dict)
        goes = outside or self._allows(self._labels[source], "egress", self._labels[target], port)
        comes = self._allows(self._labels[target], "ingress", source, port)
        return goes and comes

    def _allows(self, labels, direction, peer, port):
        return any(
            _takes(rule, direction, peer if isinstance(peer, dict) else self._labels[peer], port)
            for policy in self._policies
            if matches(policy["podSelector"], labels)
            for rule in policy.get(direction, ())
        )


def _takes(rule, direction, peer, port):
    ports = rule.get("ports")
    if ports and not any(p["port"] <= port <= p.get("endPort", p["port"]) for p in ports):
        return False
    peers = rule.get({"ingress": "from", "egress": "to"}[direction])
    return peers is None or any(_is(peer, selector) for selector in peers)


def _is(peer, selector):
    if "ipBlock" in selector:
        return False
    if "namespace" in peer:
        if "namespaceSelector" not in selector:
            return False
        own = matches(selector["namespaceSelector"], peer["namespace"])
        return own and matches(selector.get("podSelector", {}), peer.get("pod", {}))
    return "namespaceSelector" not in selector and matches(selector["podSelector"], peer)


def namespace(access, **pod):
    return {"namespace": {"pagoda.dev/access": access}, "pod": pod}


def test_everything_is_denied_first(objects):
    spec = only(objects, "NetworkPolicy", "default-deny")["spec"]
    assert spec == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def test_rays_pods_reach_each_other_at_every_port_that_ray_is_given(objects):
    network, found = Network(objects), groups(objects)
    workers = [name for name in found if name != "head"]
    assert network.lets(workers[0], "head", 6379)
    for name, group in found.items():
        given = group["rayStartParams"]
        for port in PORTS_OF_RAY:
            assert network.lets(workers[-1], name, int(given[port])), port
        for port in (given["min-worker-port"], given["max-worker-port"]):
            assert network.lets("head", name, int(port))
            assert network.lets(name, workers[0], int(port))


def test_gateways_and_token_streams_are_reached_at_ports_that_the_kernel_hands_out(objects):
    network, found = Network(objects), groups(objects)
    workers = [name for name in found if name != "head"]
    http = (
        constants.RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT,
        constants.RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT,
    )
    for group in found.values():
        [sysctl] = group["template"]["spec"]["securityContext"]["sysctls"]
        assert sysctl["name"] == "net.ipv4.ip_local_port_range"
        least, greatest = map(int, sysctl["value"].split())
        assert least > http[1]
        for port in (*http, least, greatest):
            assert network.lets("head", workers[0], port)
            assert network.lets(workers[0], workers[-1], port)
        assert not network.lets("head", workers[0], greatest + 1)


def test_a_worker_whose_haproxy_reaches_no_gateway_reaches_the_heads_own_proxy(objects):
    network = Network(objects)
    environment = only(objects, "ConfigMap", "pagoda-ray-environment")["data"]
    port = int(environment["RAY_SERVE_FALLBACK_PROXY_HTTP_PORT"])
    workers = [name for name in groups(objects) if name != "head"]
    assert all(network.lets(worker, "head", port) for worker in workers)
    assert not network.lets(namespace("clients"), "head", port)


def test_ports_do_not_meet(objects):
    for group in groups(objects).values():
        given = group["rayStartParams"]
        single = [int(given[port]) for port in PORTS_OF_RAY]
        single += [p["containerPort"] for p in ray_container(group)["ports"]]
        assert len(set(single)) == len(single)
        least, greatest = int(given["min-worker-port"]), int(given["max-worker-port"])
        assert not [port for port in single if least <= port <= greatest]


def test_clients_reach_http_and_nothing_else(objects):
    network = Network(objects)
    port = serve_config(objects)["http_options"]["port"]
    clients = namespace("clients")
    for name, group in groups(objects).items():
        assert network.lets(clients, name, port)
        for other in (6379, 8265, 8080, 9101, 10100, 30000, 42000, 52365):
            assert not network.lets(clients, name, other)
        assert group["template"]["metadata"]["labels"]


def test_a_stranger_reaches_nothing(objects):
    network = Network(objects)
    for name in pod_templates(objects):
        for port in (6379, 8000, 8080, 8265, 9101, 9121, 10100, 30000, 42000, 52365):
            assert not network.lets(namespace("none"), name, port)


def test_the_operator_reaches_the_dashboard_and_the_health_of_the_head(objects):
    network = Network(objects)
    operator = namespace("operator", **{"app.kubernetes.io/name": "kuberay-operator"})
    for port in (8265, 52365, 8000):
        assert network.lets(operator, "head", port)
    assert not network.lets(namespace("operator"), "head", 8265)


def test_prometheus_reaches_metrics_and_no_dashboard(objects):
    network = Network(objects)
    prometheus = namespace("monitoring")
    for name in groups(objects):
        for port in (8000, 8080, 9101):
            assert network.lets(prometheus, name, port)
        assert not network.lets(prometheus, name, 8265)
    for name in ("valkey-blocks", "valkey-gcs"):
        assert network.lets(prometheus, name, 9121)
        assert not network.lets(prometheus, name, 6379)


def test_blocks_are_for_workers_and_rays_memory_for_the_head(objects):
    network = Network(objects)
    for name in groups(objects):
        assert network.lets(name, "valkey-gcs", 6379) is (name == "head")
        assert network.lets(name, "valkey-blocks", 6379) is (name != "head")


def test_a_policy_that_is_missing_is_noticed():
    objects = rendered("cpu-demo")
    kept = [o for o in objects if o["metadata"]["name"] != "workers-to-blocks"]
    assert Network(objects).lets("mixed", "valkey-blocks", 6379)
    assert not Network(kept).lets("mixed", "valkey-blocks", 6379)


def test_a_gateway_of_an_incremental_upgrade_reaches_workers():
    network = Network(rendered("gpu"))
    proxy = {"gateway.networking.k8s.io/gateway-name": "pagoda-gateway"}
    network._labels["proxy"] = proxy
    assert network.lets("proxy", "mixed", 8000)
    assert not network.lets("proxy", "mixed", 30000)
    assert network.lets(namespace("clients"), "proxy", 80)
