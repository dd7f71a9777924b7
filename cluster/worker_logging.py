"""Lets the house's events be seen from Ray's worker processes, which by default drop them."""

import logging
import sys

_PACKAGES = ("cluster", "replicas", "router", "kvstore")


def log_to_stderr() -> None:
    """Write the house's events to stderr; Ray keeps it as the worker's log and forwards it.

    Only our own loggers are touched: Ray and Serve have set up theirs.
    """
    # Serve puts its own log file in the place of sys.stderr.
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    for package in _PACKAGES:
        logger = logging.getLogger(package)
        if not logger.handlers:
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            logger.propagate = False
