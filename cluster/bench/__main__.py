"""Runs one benchmark by its name: `python -m cluster.bench handoff --rounds 20`."""

import argparse
import sys
from collections.abc import Callable, Sequence

from cluster.bench import distribution, handoff, interference, routing, served, store_cost

# What adds a benchmark's options, and runs it; returns the exit status.
BENCHMARKS: dict[
    str, tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]
] = {
    "distribution": (distribution.add_options, distribution.main),
    "handoff": (handoff.add_options, handoff.main),
    "interference": (interference.add_options, interference.main),
    "routing": (routing.add_options, routing.main),
    "served": (served.add_options, served.main),
    "store-cost": (store_cost.add_options, store_cost.main),
}


def main(arguments: Sequence[str]) -> int:
    """The exit status of the benchmark that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m cluster.bench", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, (add_options, _run) in BENCHMARKS.items():
        add_options(names.add_parser(name))
    options = parser.parse_args(arguments)
    return BENCHMARKS[options.name][1](options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
