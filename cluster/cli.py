"""The `pagoda` command: finds the subcommand, and turns wrong use into one line and exit code 2."""

import argparse
import sys
from importlib.metadata import version

from cluster.package_origin import ForeignPackage, check_package_origin


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        check_package_origin()
    except ForeignPackage as error:
        return _refuse(str(error))
    # What is wrong with a foreign package shows on import, so the check comes first.
    from cluster.commands import loadtest
    from cluster.config_loading import unknown_flag_message
    from cluster.settings import SettingError

    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["loadtest"]:
        return loadtest.run(arguments[1:])
    options, unknown = _parser().parse_known_args(arguments)
    if unknown:
        return _refuse(unknown_flag_message(unknown))
    try:
        code: int = options.run(options)
    except SettingError as error:
        return _refuse(str(error))
    return code


def _parser() -> argparse.ArgumentParser:
    from cluster.commands import loadtest, serve, settings, store

    parser = argparse.ArgumentParser(
        prog="pagoda", description="Serve language models from a cluster.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"pagoda {version('pagoda-serve')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    serve.add_parser(commands)
    loadtest.add_parser(commands)
    settings.add_parser(commands)
    store.add_parser(commands)
    return parser


def _refuse(message: str) -> int:
    print(f"pagoda: error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
