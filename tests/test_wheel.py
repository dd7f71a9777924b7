"""The wheel holds exactly our packages, and the command in it runs from anywhere."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PACKAGES = {"kvstore", "replicas", "router", "cluster", "loadtest"}


def run(*command, cwd):
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=240, cwd=cwd, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from the files that git has, so nothing that lies about gets in."""
    source = tmp_path_factory.mktemp("source")
    names = run("git", "ls-files", "-z", "--cached", cwd=ROOT).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    target = tmp_path_factory.mktemp("wheel")
    run(
        *(sys.executable, "-m", "build", "--wheel", "--no-isolation"),
        *("--outdir", str(target), str(source)),
        cwd=source,
    )
    (built,) = target.glob("pagoda_serve-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A clean environment that sees our dependencies, but not this checkout."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", str(folder), cwd=folder)
    site = next(folder.glob("lib/python*/site-packages"))
    run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"),
        *("--prefix", str(folder), "--ignore-installed", str(wheel)),
        cwd=folder,
    )
    ours = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    # A plain path entry gives the dependencies; the checkout's own hook is a .pth file there, which
    # is not followed from a path entry.
    (site / "dependencies.pth").write_text(f"{ours}\n")
    return folder


def test_it_holds_exactly_our_packages(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert top == PACKAGES


def test_every_file_that_a_running_service_needs_is_in_it(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    kinds = (
        "*.py",
        "*.pyi",
        "*.typed",
        "*.cpp",
        "*.h",
        "*.proto",
        "*.html",
        "*.css",
        "*.js",
        "*.svg",
    )
    tracked = run("git", "ls-files", *kinds, cwd=ROOT).split()
    ours = {name for name in tracked if name.partition("/")[0] in PACKAGES}
    assert ours - names == set()


def test_it_carries_the_licence_and_every_package_is_typed(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)


def test_the_command_runs_from_another_folder(installed, tmp_path):
    # A folder that looks like ours in the current directory must not matter.
    (tmp_path / "router").mkdir()
    (tmp_path / "router" / "__init__.py").write_text("")
    pagoda = str(installed / "bin" / "pagoda")
    assert run(pagoda, "--version", cwd=tmp_path).startswith("pagoda 0.")
    assert "--max-num-seqs" in run(pagoda, "serve", "--help", cwd=tmp_path)


def test_its_packages_come_from_where_it_was_installed(installed, tmp_path):
    code = "import cluster, replicas; print(cluster.__file__); print(replicas.__file__)"
    places = run(str(installed / "bin" / "python"), "-c", code, cwd=tmp_path).split()
    assert all(place.startswith(str(installed)) for place in places)
