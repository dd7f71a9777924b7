"""Starts the mock server from the command line: `python -m loadtest.mock_server`."""

import argparse
import asyncio
import dataclasses
import gc
import signal
import sys
from collections.abc import Sequence

import uvloop

from loadtest.mock_server.profile import MockProfile
from loadtest.mock_server.server import MockServer

_TYPES = {"float": float, "int": int, "str": str, "int | None": int}


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted; prints one line with the address when ready."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.mock_server", description="An OpenAI-compatible mock server."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free port")
    for field in dataclasses.fields(MockProfile):
        _add_option(parser, field)
    options = vars(parser.parse_args(argv))
    host, port = options.pop("host"), options.pop("port")
    uvloop.run(_serve(MockProfile(**options), host, port))
    return 0


def _add_option(parser: argparse.ArgumentParser, field: "dataclasses.Field[object]") -> None:
    name = "--" + field.name.replace("_", "-")
    if isinstance(field.default, bool):
        parser.add_argument(name, action=argparse.BooleanOptionalAction, default=field.default)
        return
    kind = getattr(field.type, "__name__", str(field.type))
    parser.add_argument(name, type=_TYPES[kind], default=field.default)


async def _serve(profile: MockProfile, host: str, port: int) -> None:
    server = MockServer(profile)
    port = await server.start(host, port)
    # Collections scan every open stream; they come far apart instead of every 700 objects.
    gc.set_threshold(100_000, 20, 100)
    print(f"mock server ready http://{host}:{port}", flush=True)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    await stop.wait()
    await server.close()


if __name__ == "__main__":
    sys.exit(main())
