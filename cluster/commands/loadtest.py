"""`pagoda loadtest`: hands its arguments to the load driver, which knows nothing of the house."""

import argparse
from collections.abc import Sequence


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Let the subcommand stand in the list; its arguments are the driver's own."""
    commands.add_parser("loadtest", help="measure any OpenAI-compatible server", add_help=False)


def run(arguments: Sequence[str]) -> int:
    """Run the driver and return its exit code."""
    # Its libraries are nothing that a server needs.
    from loadtest.__main__ import main

    return main(arguments)
