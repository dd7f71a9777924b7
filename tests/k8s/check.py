"""`make k8s`: renders every overlay both ways, validates it all, and prints what it checked."""

import sys
from collections import Counter

import kubernetes_validate

from tests.k8s.custom_resources import NO_CRDS, SHARED, CustomResources, is_custom
from tests.k8s.kustomize import Object, load, render
from tests.k8s.manifests import K8S, OVERLAYS, pod_templates
from tests.k8s.pod_security import violations
from tests.k8s.references import missing, references
from tests.k8s.secret_keys import made_secrets
from tests.k8s.tools import KUBERNETES, VALUES, helm_template, kubectl_kustomize, run, tool


def main() -> int:
    """Exit code: 0 if everything is valid."""
    crds = CustomResources(SHARED) if SHARED.is_dir() else None
    if crds is None:
        print(f"skipped: {NO_CRDS}")
    else:
        crds.load_rules({"RayService", "RayCluster", "PodMonitor", "ServiceMonitor"})
        crds.load_rules({"PrometheusRule"})
    faults = [fault for overlay in OVERLAYS for fault in _check(overlay, crds)]
    for fault in faults:
        print(f"FAULT {fault}")
    print(f"{len(faults)} faults")
    return 1 if faults else 0


def _check(overlay: str, crds: CustomResources | None) -> list[str]:
    ways = {"our renderer": render(K8S / "overlays" / overlay)}
    if tool("kubectl"):
        ways["kubectl kustomize"] = kubectl_kustomize(K8S / "overlays" / overlay)
    if tool("helm"):
        ways["helm template"] = helm_template(*VALUES[overlay])
    faults = []
    for way, objects in ways.items():
        faults += [f"{overlay}, {way}: {fault}" for fault in _faults(objects, crds)]
        kinds = Counter(o["kind"] for o in objects)
        print(f"{overlay}: {way}: {len(objects)} objects ({_list(kinds)})")
    missing_tools = [name for name in ("kubectl", "helm") if not tool(name)]
    if missing_tools:
        print(f"{overlay}: skipped, not installed: {', '.join(missing_tools)}")
    else:
        linted = run("helm", "lint", "--strict", str(K8S / "chart"), *VALUES[overlay])
        faults += [linted.stdout] if linted.returncode else []
    return faults


def _faults(objects: list[Object], crds: CustomResources | None) -> list[str]:
    found = []
    for item in [*objects, *load(K8S / "namespace-pagoda.yaml")]:
        if not is_custom(item):
            try:
                kubernetes_validate.validate(item, KUBERNETES, strict=True)
            except kubernetes_validate.ValidationError as error:
                found.append(f"{item['kind']} {item['metadata']['name']}: {error.message}")
        elif crds is not None:
            found += [f"{item['kind']}: {complaint}" for complaint in crds.complaints(item)]
    secrets = {name: set(data) for name, data in made_secrets().items()}
    found += [f"missing {reference}" for reference in missing(objects, secrets)]
    for name, template in pod_templates(objects).items():
        found += [f"pod {name}: {violation}" for violation in violations(template)]
    custom = sum(map(is_custom, objects))
    print(
        f"  schemas of Kubernetes {KUBERNETES}: {len(objects) - custom + 1}; CRD schemas and CEL: "
        f"{custom if crds else 0}; references: {len(references(objects))}; pods against Pod "
        f"Security restricted: {len(pod_templates(objects))}"
    )
    return found


def _list(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


if __name__ == "__main__":
    sys.exit(main())
