"""Refuses to run with packages of another distribution, since others use our short names too."""

import importlib.util
from collections.abc import Iterable
from pathlib import Path

_HOUSE = ("kvstore", "replicas", "router", "cluster")


class ForeignPackage(Exception):
    """A package of the house would be imported from somewhere else."""


def check_package_origin(names: Iterable[str] = _HOUSE) -> None:
    """Every package has to lie beside this one; raises ForeignPackage, which says where it is."""
    home = Path(__file__).resolve().parents[1]
    for name in names:
        spec = importlib.util.find_spec(name)
        places = [
            Path(place).resolve() for place in (spec and spec.submodule_search_locations) or ()
        ]
        if places != [home / name]:
            where = ", ".join(map(str, places)) or "nowhere"
            raise ForeignPackage(
                f"the package {name} would come from {where}, expected {home / name}; "
                "another distribution of that name is in the way"
            )
