"""`pagoda serve`: checks what can be checked at once, then runs the service under a supervisor."""

import argparse
import logging
import os
import sys

from cluster import config_loading
from cluster.config import ClusterConfig
from cluster.launch.endpoint import check_address_is_free
from cluster.launch.supervisor import Supervisor

log = logging.getLogger(__name__)

# Beyond the time that running requests get, what Serve, Ray and the store need to end.
_STOP_MARGIN_S = 40.0


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe the subcommand."""
    parser = commands.add_parser(
        "serve",
        help="serve a model over HTTP",
        description="Serve a model: an OpenAI-compatible endpoint, a local Ray and a block store.",
        epilog="Every setting can also stand in a TOML file (--config) or in the environment, as "
        "PAGODA_ and its name in capitals; the command line goes before the environment, and that "
        "before the file.",
        allow_abbrev=False,
    )
    parser.add_argument("model_spec", metavar="MODEL", nargs="?", help="the same as --model")
    config_loading.add_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until told to stop; raises SettingError before anything was started."""
    flags = vars(options)
    if options.model_spec is not None:
        flags["engine.model"] = options.model_spec
    config = config_loading.load_config(flags, os.environ)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    for name, guess in config_loading.misspelt_variables(os.environ).items():
        log.warning("%s is not a setting; did you mean %s?", name, guess)
    if not config.ray.ray_address:
        check_address_is_free(config.gateway)
    supervisor = Supervisor(stop_timeout_s=config.replica.shutdown_timeout_s + _STOP_MARGIN_S)
    return supervisor.run(lambda: _serve(config))


def _serve(config: ClusterConfig) -> int:
    # Imported in the child alone: the supervisor stays small and without threads.
    from cluster.launch.service import serve_until_stopped

    return serve_until_stopped(config, os.environ)
