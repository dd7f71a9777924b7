"""`pagoda settings`: prints every setting as the table that stands in the README."""

import argparse

from cluster.config_loading import settings_table


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe the subcommand."""
    parser = commands.add_parser("settings", help="print every setting as a Markdown table")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    print(settings_table())
    return 0
