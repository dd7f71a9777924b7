"""Reads the settings of one start: defaults, then a TOML file, the environment, the command line.

Nothing else in the house reads the environment for a setting.
"""

import argparse
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from cluster import settings, speculative_config
from cluster.config import ClusterConfig
from cluster.settings import Given, Givens, Setting, SettingError

# Where the plain rule (a field's own name) would be unclear, or differ from what people know.
_NAMES = {
    "gateway.api_keys": "api_key",
    "router.policy": "routing_policy",
    "router.max_tries": "max_routing_tries",
    "prefill.num_replicas": "prefill",
    "decode.num_replicas": "decode",
}
# The pools' settings bear the names of the general ones, with the pool before them.
_POOLS = ("prefill", "decode")
_ALIASES = {"replica.num_replicas": ("--replicas",)}
_ENVIRONMENT = {"store.redis_url": "REDIS_URL", "ray.ray_address": "RAY_ADDRESS"}
# Set by the house itself when it builds an engine or a pool of them.
_INTERNAL = (
    "engine.scheduler.num_blocks",
    "engine.scheduler.num_host_slots",
    "engine.engines_per_node",
    "engine.role",
)


def public_settings() -> tuple[Setting, ...]:
    """What a user can set, in the order of the dataclasses."""
    every = settings.settings_of(ClusterConfig())
    return tuple(setting for setting in every if setting.dotted not in _INTERNAL)


def public_name(setting: Setting) -> str:
    """The one name behind flag and environment variable, in snake case."""
    pool = f"{setting.path[0]}_" if setting.path[0] in _POOLS else ""
    return _NAMES.get(setting.dotted, pool + setting.path[-1])


def flag(setting: Setting) -> str:
    """--max-num-seqs for max_num_seqs."""
    return "--" + public_name(setting).replace("_", "-")


def variable(setting: Setting) -> str:
    """PAGODA_MAX_NUM_SEQS for max_num_seqs; REDIS_URL and RAY_ADDRESS bear their usual names."""
    return _ENVIRONMENT.get(setting.dotted, "PAGODA_" + public_name(setting).upper())


def add_flags(parser: argparse.ArgumentParser, *, only: str = "") -> None:
    """One flag per setting, grouped as in the TOML file, all of them optional.

    only: the beginning of the dotted names that are meant.
    """
    groups: dict[tuple[str, ...], argparse._ArgumentGroup] = {}
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings")
    parser.add_argument(
        speculative_config.FLAG,
        metavar="JSON",
        help="the settings of engine.scheduler.speculation as vLLM has them, such as "
        '{"method": "ngram", "num_speculative_tokens": 4}',
    )
    for setting in public_settings():
        if not setting.dotted.startswith(only):
            continue
        above = setting.path[:-1]
        if above not in groups:
            groups[above] = parser.add_argument_group(".".join(above) or "general")
        groups[above].add_argument(
            flag(setting),
            *_ALIASES.get(setting.dotted, ()),
            dest=setting.dotted,
            default=None,
            help=_help(setting),
            **_form(setting),
        )


def load_config(flags: Mapping[str, object], environ: Mapping[str, str]) -> ClusterConfig:
    """The config of this start; `flags` is what the parser of add_flags found, by dotted name.

    Raises SettingError, whose message names the setting, its source and what was expected.
    """
    givens: Givens = {}
    file = flags.get("config") or environ.get("PAGODA_CONFIG")
    if file:
        givens |= from_toml(Path(str(file)))
    givens |= from_environment(environ)
    if flags.get("speculative_config") is not None:
        givens |= speculative_config.from_speculative_config(str(flags["speculative_config"]))
    givens |= from_flags(flags)
    return settings.build(ClusterConfig(), givens)


def builder_config(args: Mapping[str, object], environ: Mapping[str, str]) -> ClusterConfig:
    """The config of a Serve builder: its args, then the environment, then defaults.

    Secrets come by the environment, since args stand in a manifest that many may read. Raises
    SettingError.
    """
    defaults = ClusterConfig()
    givens = from_environment(environ) | settings.flatten(defaults, args, source="args")
    return settings.build(defaults, givens)


def from_toml(path: Path) -> Givens:
    """The settings of a TOML file, whose tables are named like the dataclasses' fields."""
    try:
        nested = tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingError(f"--config {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"--config {path}: not a TOML file: {error}") from error
    return settings.flatten(ClusterConfig(), nested, source=str(path))


def from_environment(environ: Mapping[str, str]) -> Givens:
    """The settings among the environment's variables; an empty one counts as absent."""
    return {
        setting.path: Given(environ[variable(setting)], variable(setting))
        for setting in public_settings()
        if environ.get(variable(setting))
    }


def misspelt_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """PAGODA_* variables that set nothing, and the one that was probably meant.

    They are worth a warning and not more: a Kubernetes Service that is named pagoda puts variables
    of that prefix into every container beside it.
    """
    known = [variable(setting) for setting in public_settings()]
    strangers = (n for n in environ if n.startswith("PAGODA_") and n not in known)
    guesses = {name: settings.nearest(name, known, likeness=0.85) for name in strangers}
    return {name: guess for name, guess in guesses.items() if guess}


def from_flags(flags: Mapping[str, object]) -> Givens:
    """The settings among parsed flags; None means that the flag was not given."""
    return {
        setting.path: Given(flags[setting.dotted], flag(setting))
        for setting in public_settings()
        if flags.get(setting.dotted) is not None
    }


def cache_folder(config: ClusterConfig, environ: Mapping[str, str]) -> Path:
    """Where prepared models are kept from one start to the next."""
    if config.cache_dir:
        return Path(config.cache_dir).expanduser()
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagoda"


def settings_table() -> str:
    """The README's table of settings, in Markdown."""
    lines = ["| flag | environment | TOML | default | meaning |", "|---|---|---|---|---|"]
    for setting in public_settings():
        name = flag(setting)
        spelling = f"{name}`, `--no-{name[2:]}" if setting.kind is bool else name
        lines.append(
            f"| `{spelling}` | `{variable(setting)}` | `{setting.dotted}` "
            f"| {_default_text(setting)} | {setting.help} |"
        )
    return "\n".join(lines)


def unknown_flag_message(unknown: Iterable[str]) -> str:
    """Names the first flag that does not exist, and the nearest one that does."""
    first = next(iter(unknown))
    name = first.split("=", 1)[0]
    guess = settings.nearest(name, [flag(setting) for setting in public_settings()])
    hint = f"; did you mean {guess}?" if guess else ""
    return f"{name}: no such argument{hint}"


def _form(setting: Setting) -> dict[str, Any]:
    """How argparse reads the flag; it keeps the text, so that every source is checked alike."""
    if setting.kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(setting.kind) is Literal:
        return {"metavar": "{" + ",".join(get_args(setting.kind)) + "}"}
    if get_origin(setting.kind) is tuple:
        return {"action": "append", "metavar": setting.path[-1].upper().removesuffix("S")}
    return {"metavar": _METAVARS.get(setting.kind, "TEXT")}


def _help(setting: Setting) -> str:
    text = setting.help.replace("%", "%%")
    return f"{text} [{_default_text(setting, quote='')}]"


def _default_text(setting: Setting, *, quote: str = "`") -> str:
    if setting.default in ("", ()):
        return "none"
    if isinstance(setting.default, bool):
        return "on" if setting.default else "off"
    return f"{quote}{setting.default}{quote}"


_METAVARS: dict[Any, str] = {int: "N", float: "X", str: "TEXT"}
