"""`pagoda store`: shows, verifies or empties what the block store holds, for one model or all."""

import argparse
import logging
import os
import sys
from dataclasses import replace

from cluster import config_loading
from cluster.launch.store_address import store_urls_of_runs
from cluster.settings import SettingError
from kvstore.__main__ import run_command
from kvstore.config import StoreConfig
from kvstore.errors import StoreUnavailable
from kvstore.redis_block_store import open_lanes, tls_files
from kvstore.redis_store import server_info, without_secrets
from kvstore.store_admin import StoreAdmin

_SETTINGS = "store."


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe the subcommand."""
    parser = commands.add_parser(
        "store",
        help="show, verify or empty the block store",
        description="Show what the block store holds, read all of it again and check every byte "
        "(verify; exit code 1 if a block is bad), or empty it.",
        epilog="Without --redis-url or REDIS_URL it asks the embedded store of the service that "
        "you are running on this machine.",
        allow_abbrev=False,
    )
    parser.add_argument("action", choices=("show", "verify", "empty"))
    parser.add_argument(
        "--fingerprint",
        metavar="TEXT",
        help="of the one model that is meant, or its beginning; `show` prints it",
    )
    config_loading.add_flags(parser, only=_SETTINGS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Exit code 0; 1 for a bad block, or for a store that cannot be asked.

    Raises SettingError for what is wrong with the command line.
    """
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(message)s"
    )
    config = config_loading.load_config(vars(options), os.environ).store
    if not config.redis_url:
        config = _with_embedded_url(config)
    lanes = open_lanes(config)
    try:
        admin = StoreAdmin(lanes, timeout_s=config.store_timeout_s)
        fingerprint = _whole_fingerprint(admin, options.fingerprint)
        return run_command(admin, options.action, fingerprint=fingerprint)
    except StoreUnavailable as error:
        print(f"pagoda: error: {without_secrets(config.redis_url)}: {error}", file=sys.stderr)
        return 1
    finally:
        lanes.close()


def _with_embedded_url(config: StoreConfig) -> StoreConfig:
    running = [url for url in store_urls_of_runs() if _answers(url, config)]
    if len(running) != 1:
        found = "no service with an embedded store runs" if not running else "several services run"
        raise SettingError(f"redis_url: expected --redis-url or REDIS_URL, since {found} here")
    return replace(config, redis_url=running[0])


def _answers(url: str, config: StoreConfig) -> bool:
    try:
        server_info(url, timeout_s=config.store_fetch_timeout_s, tls=tls_files(config))
    except StoreUnavailable:
        return False
    return True


def _whole_fingerprint(admin: StoreAdmin, beginning: str | None) -> str | None:
    if beginning is None:
        return None
    found = {use.fingerprint for use in admin.show() if use.fingerprint.startswith(beginning)}
    if len(found) != 1:
        expected = "the beginning of one that `pagoda store show` prints"
        raise SettingError(f"--fingerprint={beginning!r}: {len(found)} models; expected {expected}")
    return found.pop()
