"""Everything one engine step has to tell the outside, in one message."""

from dataclasses import dataclass

from replicas.engine_stats import EngineStats
from replicas.engine_view import EngineView
from replicas.request import KvEvent, TokenEntry


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Tokens, ends, refusals and admissions of one step, with the snapshot taken after it.

    kv_events stand in the order in which they happened. view: now and then, while somebody watches.
    """

    stats: EngineStats
    entries: tuple[TokenEntry, ...] = ()
    kv_events: tuple[KvEvent, ...] = ()
    view: EngineView | None = None
