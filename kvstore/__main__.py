"""`python -m kvstore show|verify|empty`: what the block store holds, for people and scripts.

The server's URL comes from --redis-url or REDIS_URL; the second keeps a password off the command
line, which every user of a machine can read.
"""

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence

from kvstore.config import StoreConfig
from kvstore.errors import StoreUnavailable
from kvstore.redis_block_store import open_lanes
from kvstore.redis_url import without_secrets
from kvstore.store_admin import StoreAdmin


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Exit status: 0, 1 if `verify` found a bad block, 2 if the store cannot be asked."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    options = _parser().parse_args(arguments)
    try:
        config = StoreConfig(
            redis_url=options.redis_url or environ.get("REDIS_URL", ""),
            redis_ca_file=options.redis_ca_file,
            redis_cert_file=options.redis_cert_file,
            redis_key_file=options.redis_key_file,
            store_timeout_s=options.timeout_s,
        )
        if not config.redis_url:
            raise ValueError("redis_url: expected --redis-url, or REDIS_URL in the environment")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    lanes = open_lanes(config)
    try:
        admin = StoreAdmin(lanes, timeout_s=config.store_timeout_s)
        return run_command(admin, options.command, fingerprint=options.model)
    except StoreUnavailable as error:
        print(f"{without_secrets(config.redis_url)}: {error}", file=sys.stderr)
        return 2
    finally:
        lanes.close()


def run_command(admin: StoreAdmin, command: str, *, fingerprint: str | None) -> int:
    """Do one of show, verify and empty, and print what came of it; the exit status."""
    if command == "show":
        uses = admin.show(fingerprint)
        for use in uses:
            print(f"{use.num_blocks:>10} blocks {use.num_bytes:>16} bytes  {use.namespace}")
        total_bytes = sum(use.num_bytes for use in uses)
        print(f"{sum(use.num_blocks for use in uses):>10} blocks {total_bytes:>16} bytes  in all")
        return 0
    if command == "empty":
        print(f"{admin.empty(fingerprint)} blocks removed")
        return 0
    verified = admin.verify(fingerprint)
    for bad in verified.bad:
        print(f"{bad.kind}  {bad.namespace} {bad.name.hex()}: {bad.reason}")
    print(
        f"{verified.num_whole} blocks whole, {verified.num_bytes} bytes; "
        f"{len(verified.bad)} bad; {verified.num_gone} gone meanwhile"
    )
    return 1 if verified.bad else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kvstore", description=__doc__)
    parser.add_argument("command", choices=("show", "verify", "empty"))
    parser.add_argument("--redis-url", default="", help="where the store is; default: REDIS_URL")
    parser.add_argument("--redis-ca-file", default="", help="who signed the server's certificate")
    parser.add_argument("--redis-cert-file", default="", help="our own certificate")
    parser.add_argument("--redis-key-file", default="", help="the key of our own certificate")
    parser.add_argument("--model", help="fingerprint of the one model that is meant")
    parser.add_argument("--timeout-s", type=float, default=10.0, help="longest wait for a batch")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
