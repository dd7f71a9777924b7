"""What goes between an engine core's process and its parent, besides commands and step outputs.

Sent as pickles over a socket pair that only these two processes hold; nothing from a network is
ever unpickled here.
"""

from dataclasses import dataclass

from replicas.config import EngineConfig
from replicas.engine_info import EngineInfo


@dataclass(frozen=True, slots=True)
class CoreSetUp:
    """Parent to core, first of all: what to build.

    has_store: whether the parent moves blocks to a store and back. fetch_timeout_s: longest that a
    request waits for those.
    """

    config: EngineConfig
    has_store: bool
    fetch_timeout_s: float


@dataclass(frozen=True, slots=True)
class CorePhase:
    """One part of the start-up is done, in seconds."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class CoreReady:
    """The engine can serve."""

    info: EngineInfo


@dataclass(frozen=True, slots=True)
class CoreFailed:
    """The engine cannot go on, and why; the process ends after this."""

    reason: str


@dataclass(frozen=True, slots=True)
class Close:
    """Parent to core: end."""
