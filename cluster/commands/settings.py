"""`pagoda settings`: prints every setting as the table that stands in the README."""

import argparse
from pathlib import Path

from cluster.config_loading import settings_table
from cluster.settings import SettingError

BEGIN = "<!-- settings: written by `pagoda settings --write README.md` -->"
END = "<!-- end of settings -->"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe the subcommand."""
    parser = commands.add_parser("settings", help="print every setting as a Markdown table")
    parser.add_argument(
        "--write", metavar="FILE", type=Path, help="replace the table in a Markdown file instead"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the table, or put it into a file; raises SettingError if that has no place for it."""
    if options.write is None:
        print(settings_table())
    else:
        options.write.write_text(with_settings_table(options.write.read_text()))
    return 0


def with_settings_table(text: str) -> str:
    """The text of a Markdown file with the table that the dataclasses give now."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SettingError(f"--write: expected a file with the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{settings_table()}\n{END}{after}"
