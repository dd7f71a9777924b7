"""Turns nested dataclasses into named settings, and named values back into the dataclasses.

One description for every source: the TOML file, the environment, the command line and the
arguments of the Serve builder all speak of the same paths, such as engine.scheduler.block_size, so
a name, a type and a sentence of help stand in one place: the dataclass and its docstring.
"""

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Path = tuple[str, ...]
Config = TypeVar("Config")

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


class SettingError(ValueError):
    """A setting cannot be used; the message names it, its value and what was expected."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One leaf of a config dataclass. `kind` is its annotation, `help` its docstring's words."""

    path: Path
    kind: Any
    default: object
    help: str

    @property
    def dotted(self) -> str:
        """The name in a TOML file and in messages: engine.scheduler.block_size."""
        return ".".join(self.path)

    @property
    def expectation(self) -> str:
        """What a value has to look like, for help texts and messages."""
        if typing.get_origin(self.kind) is Literal:
            return " or ".join(str(choice) for choice in typing.get_args(self.kind))
        if self.kind is int and self.path[-1].endswith("_bytes"):
            return "a number of bytes such as 1073741824 or 1GiB"
        return _EXPECTATIONS[self.kind]


@dataclass(frozen=True, slots=True)
class Given:
    """A value somebody gave, and where: "--port", "PAGODA_PORT", "pagoda.toml: gateway.port"."""

    value: object
    source: str


Givens = dict[Path, Given]


def settings_of(defaults: Any, path: Path = ()) -> Iterator[Setting]:
    """Every leaf of a config dataclass and those inside it, in the order they are written in.

    `defaults` is an instance, whose values are the settings' defaults.
    """
    kinds = typing.get_type_hints(type(defaults))
    texts = field_texts(type(defaults))
    for field in dataclasses.fields(defaults):
        default = getattr(defaults, field.name)
        if dataclasses.is_dataclass(default):
            yield from settings_of(default, (*path, field.name))
        else:
            text = texts.get(field.name, "")
            yield Setting((*path, field.name), kinds[field.name], default, text)


def field_texts(config_class: type[Any]) -> dict[str, str]:
    """What a class docstring says of its fields, from its `name: text` and `name, name: text`."""
    lines = (config_class.__doc__ or "").splitlines()
    texts: dict[str, str] = {}
    names: tuple[str, ...] = ()
    for line in lines:
        opening = re.fullmatch(r"    ([a-z_]+(?:, [a-z_]+)*): (.+)", line)
        if opening:
            names = tuple(opening[1].split(", "))
            texts |= dict.fromkeys(names, opening[2])
        elif names and line.startswith("        ") and line.strip():
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
        else:
            names = ()
    return texts


def flatten(defaults: Any, nested: Mapping[str, object], *, source: str) -> Givens:
    """The leaves of a partial nested mapping (a TOML file, Serve arguments).

    Raises SettingError for a key that is no setting, with the nearest name that is one.
    """
    known = {setting.path: setting for setting in settings_of(defaults)}
    groups = {path[:depth] for path in known for depth in range(len(path))}
    givens: Givens = {}

    def descend(path: Path, value: object) -> None:
        name = ".".join(path)
        if path in known:
            givens[path] = Given(value, f"{source}: {name}")
        elif path not in groups:
            raise SettingError(f"{source}: {_unknown(name, known)}")
        elif isinstance(value, Mapping):
            for key, below in value.items():
                descend((*path, str(key)), below)
        else:
            raise SettingError(f"{source}: {name}={value!r}: expected a table of settings")

    descend((), nested)
    return givens


def build(defaults: Config, givens: Givens, path: Path = ()) -> Config:
    """A config like `defaults` with the given values in place of its own.

    Raises SettingError for a value of the wrong type, and for what the dataclass itself refuses.
    """
    changes: dict[str, Any] = {}
    kinds = typing.get_type_hints(type(defaults))
    for field in dataclasses.fields(typing.cast(Any, defaults)):
        below = (*path, field.name)
        default = getattr(defaults, field.name)
        if dataclasses.is_dataclass(default):
            changes[field.name] = build(default, givens, below)
        elif below in givens:
            setting = Setting(below, kinds[field.name], default, help="")
            changes[field.name] = parse(setting, givens[below])
    try:
        return typing.cast(Config, dataclasses.replace(typing.cast(Any, defaults), **changes))
    except SettingError:
        raise
    except ValueError as error:
        raise SettingError(_with_source(str(error), path, givens)) from error


def nest(config: Any) -> dict[str, object]:
    """The inverse of flatten and build: plain, JSON-able values under the names of the fields."""
    nested: dict[str, object] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            nested[field.name] = nest(value)
        else:
            nested[field.name] = list(value) if isinstance(value, tuple) else value
    return nested


def parse(setting: Setting, given: Given) -> object:
    """A value in the setting's own type, from text or from a TOML or JSON value."""
    reader = _READERS.get(setting.kind, _read_choice)
    value = reader(setting, given.value)
    if value is None:
        raise SettingError(f"{given.source}={given.value!r}: expected {setting.expectation}")
    return value


def nearest(name: str, names: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """The known name that a misspelt one probably means."""
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=likeness)
    return found[0] if found else None


def _unknown(name: str, known: Mapping[Path, Setting]) -> str:
    last = name.rsplit(".", 1)[-1]
    same_leaf = [setting.dotted for path, setting in known.items() if path[-1] == last]
    guess = same_leaf[0] if same_leaf else nearest(name, (s.dotted for s in known.values()))
    hint = f"; did you mean {guess}?" if guess else ""
    return f"{name} is not a setting{hint}"


def _with_source(message: str, path: Path, givens: Givens) -> str:
    named = re.match(r"(\w+)=", message)
    given = givens.get((*path, named[1])) if named else None
    return f"{message} (from {given.source})" if given else message


def _read_int(setting: Setting, value: object) -> int | None:
    if isinstance(value, str) and setting.path[-1].endswith("_bytes"):
        return _read_bytes(value)
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d[\d_]*", value.strip()):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read_bytes(text: str) -> int | None:
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        return None
    base = 1024 if match[3] else 1000
    power = " KMGT".index(match[2].upper() or " ")
    return int(float(match[1]) * base**power)


def _read_float(setting: Setting, value: object) -> float | None:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _read_bool(setting: Setting, value: object) -> bool | None:
    if isinstance(value, str) and value.strip().lower() in (*_TRUE, *_FALSE):
        return value.strip().lower() in _TRUE
    return value if isinstance(value, bool) else None


def _read_str(setting: Setting, value: object) -> str | None:
    return value if isinstance(value, str) else None


def _read_names(setting: Setting, value: object) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        return tuple(value)
    return None


def _read_choice(setting: Setting, value: object) -> object:
    return value if value in typing.get_args(setting.kind) else None


_Reader = Callable[[Setting, object], object]
_NAMES = types.GenericAlias(tuple, (str, ...))
_READERS: dict[Any, _Reader] = {
    int: _read_int,
    float: _read_float,
    bool: _read_bool,
    str: _read_str,
    _NAMES: _read_names,
}
_EXPECTATIONS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    _NAMES: "names separated by commas",
}
