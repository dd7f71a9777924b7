"""The Dockerfile: what goes in, as whom it runs, and that everything that it names exists."""

import fnmatch
import re
import tomllib

import pytest

from cluster.kubernetes import drain_node, model_volume
from replicas.models.demo_model import DEMO_PACKAGE
from tests.k8s.manifests import K8S, OVERLAYS, ROOT, containers, groups, rendered

TEXT = (K8S / "Dockerfile").read_text()
IGNORED = (ROOT / ".dockerignore").read_text().splitlines()
CPU, CUDA = "cpu", "cuda"


def stages():
    """Each stage's instructions by its name, continued lines joined."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE))
    found, name = {}, ""
    for line in joined.splitlines():
        if line.startswith("FROM "):
            name = line.rpartition(" AS ")[2]
            found[name] = [line]
        elif line.strip() and name:
            found[name].append(line)
    return found


def packages():
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    return {name.rstrip("*") for name in included["packages"]["find"]["include"]}


def copied():
    lines = [line for lines in stages().values() for line in lines if line.startswith("COPY ")]
    own = [line.split()[1:-1] for line in lines if "--from=" not in line]
    return {name for names in own for name in names}


def test_every_file_that_is_copied_exists_and_no_package_is_left_out():
    for name in copied():
        assert (ROOT / name).exists(), name
    assert packages() <= copied()


def test_what_is_copied_is_not_ignored_and_nothing_else_is_sent():
    assert "*" in IGNORED
    wanted = {line.removeprefix("!") for line in IGNORED if line.startswith("!")}
    assert wanted == copied()
    dropped = [line for line in IGNORED if line.startswith("**/")]
    assert any(fnmatch.fnmatch("cluster/__pycache__", pattern) for pattern in dropped)


@pytest.mark.parametrize("target", [CPU, CUDA])
def test_an_image_runs_as_nobody_special(target):
    [user] = [line for line in stages()[target] if line.startswith("USER ")]
    uid, gid = user.split()[1].split(":")
    for overlay in OVERLAYS:
        for group in groups(rendered(overlay)).values():
            context = group["template"]["spec"]["securityContext"]
            assert (str(context["runAsUser"]), str(context["runAsGroup"])) == (uid, gid)


def test_base_images_and_dependencies_are_pinned():
    assert re.search(r"ARG PYTHON_IMAGE=\S+:3\.11\.\d+-slim-\w+\n", TEXT)
    for lines in stages().values():
        assert re.match(r"FROM (\$\{PYTHON_IMAGE\}|\w+(-\w+)?) AS", lines[0])
        for line in lines:
            for command in re.findall(r"pip install[^&]*", line):
                assert "-c constraints/" in command, command


def test_no_model_is_in_an_image():
    assert DEMO_PACKAGE not in TEXT
    assert "models" not in " ".join(copied())


def test_kernels_are_built_before_the_image_is():
    [build] = [line for line in stages()["build-cpu"] if "replicas.kernels.cpu.build" in line]
    assert "python -m replicas.kernels.cpu.build --all" in build
    # Where it puts them is where the image looks for them.
    home = re.search(r"XDG_CACHE_HOME=(\S+) python", build)[1]
    assert f"XDG_CACHE_HOME={home} " in " ".join(stages()["runtime"])
    assert home.startswith("/opt/pagoda/")
    assert any("g++" in line for line in stages()["build"])
    assert not any("g++" in line for line in stages()[CPU] + stages()["runtime"])


def test_what_kuberay_and_the_pods_call_is_in_the_image():
    assert "openssl" in " ".join(stages()["runtime"])
    called = {
        word
        for overlay in OVERLAYS
        for group in groups(rendered(overlay)).values()
        for container in containers(group["template"])
        for word in container.get("command", ())
    }
    assert {model_volume.__name__} == called - {"python", "-m"}
    assert drain_node.__name__.partition(".")[0] in packages()


def test_targets_are_those_of_the_manifests():
    tags = {
        container["image"].rpartition("-")[2]
        for overlay in OVERLAYS
        for group in groups(rendered(overlay)).values()
        for container in containers(group["template"])
    }
    assert tags == {CPU, CUDA} <= set(stages())
