"""The Pod Security standard `restricted`, as far as a pod's own fields decide it."""

from collections.abc import Iterator

from tests.k8s.kustomize import Object
from tests.k8s.manifests import containers

_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"),
    *("projected", "secret"),
}
_SYSCTLS = {
    *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies"),
    *("net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range"),
    *("net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time"),
    *("net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes"),
}


def violations(template: Object) -> list[str]:
    """Why the API server would refuse the pod in a namespace that enforces `restricted`."""
    spec = template["spec"]
    return [*_of_pod(spec), *(f for c in containers(template) for f in _of_container(c, spec))]


def _of_pod(spec: Object) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield field
    for volume in spec.get("volumes", ()):
        if kinds := set(volume) - {"name"} - _VOLUMES:
            yield f"volume {volume['name']}: {kinds}"
    for sysctl in spec.get("securityContext", {}).get("sysctls", ()):
        if sysctl["name"] not in _SYSCTLS:
            yield f"sysctl {sysctl['name']}"


def _of_container(container: Object, spec: Object) -> Iterator[str]:
    own = container.get("securityContext", {})
    pod = spec.get("securityContext", {})
    name = container["name"]
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation"
    if own.get("privileged"):
        yield f"{name}: privileged"
    if "ALL" not in own.get("capabilities", {}).get("drop", ()):
        yield f"{name}: capabilities"
    if set(own.get("capabilities", {}).get("add", ())) - {"NET_BIND_SERVICE"}:
        yield f"{name}: capabilities added"
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield f"{name}: runAsNonRoot"
    if own.get("runAsUser", pod.get("runAsUser")) == 0:
        yield f"{name}: runAsUser"
    profile = own.get("seccompProfile", pod.get("seccompProfile", {}))
    if profile.get("type") not in ("RuntimeDefault", "Localhost"):
        yield f"{name}: seccompProfile"
    if any("hostPort" in port for port in container.get("ports", ())):
        yield f"{name}: hostPort"
