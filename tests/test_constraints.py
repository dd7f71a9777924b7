"""Every dependency is pinned within the range of pyproject.toml, alike for CPU and CUDA."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
FOLLOWS_FROM_THE_DRIVER = {"torch", "triton"}


def normal(name):
    return name.lower().replace("_", "-")


def pins(kind):
    lines = (ROOT / "constraints" / f"{kind}.txt").read_text().splitlines()
    parsed = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {normal(pin.name): pin for pin in parsed}


def wanted():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [text for texts in project["optional-dependencies"].values() for text in texts]
    named = [Requirement(text) for text in project["dependencies"] + extras]
    # One extra may take in another of ours.
    return [requirement for requirement in named if requirement.name != project["name"]]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_every_pin_is_exact(kind):
    loose = [str(pin) for pin in pins(kind).values() if not str(pin.specifier).startswith("==")]
    assert loose == []


def test_every_dependency_is_pinned_within_its_range():
    pinned = pins("cpu")
    for requirement in wanted():
        (pin,) = pinned[normal(requirement.name)].specifier
        assert requirement.specifier.contains(pin.version), requirement


def test_a_gpu_machine_differs_in_what_follows_from_its_driver_alone():
    cpu, cuda = pins("cpu"), pins("cuda")
    assert cpu.keys() - cuda.keys() == FOLLOWS_FROM_THE_DRIVER
    assert {name: str(pin) for name, pin in cpu.items() if name in cuda} == {
        name: str(pin) for name, pin in cuda.items()
    }
