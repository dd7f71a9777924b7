"""Opens the publisher if it is wanted, and lets it hear what an engine's steps say."""

import importlib.util
from collections.abc import Callable
from typing import Protocol

from cluster.kv_events.config import KvEventsConfig
from replicas.request import KvEvent
from replicas.step_output import StepOutput


class KvEventsUnavailable(RuntimeError):
    """Publishing is asked for, and a package that it needs is not installed."""


class Publisher(Protocol):
    """What takes events (cluster.kv_events.publisher)."""

    def publish(self, events: tuple[KvEvent, ...]) -> None:
        """Changes in the order in which they happened; never waits."""
        ...

    def close(self) -> None:
        """Let go of the ports."""
        ...


def open_publisher(
    config: KvEventsConfig, *, host: str, model_name: str, block_size: int
) -> Publisher | None:
    """None when nothing is to be published; KvEventsUnavailable if a package is missing."""
    if not config.kv_events_endpoint:
        return None
    missing = [name for name in ("zmq", "msgspec") if importlib.util.find_spec(name) is None]
    if missing:
        raise KvEventsUnavailable(
            f"kv_events_endpoint needs {', '.join(missing)}: pip install 'pagoda-serve[kv-events]'"
        )
    # Imported here because a replica that publishes nothing should need neither package.
    from cluster.kv_events.publisher import KvEventsPublisher

    topic = config.kv_events_topic or f"kv@{host}@{model_name}"
    return KvEventsPublisher(config, topic=topic, block_size=block_size)


class KvEventsTap:
    """Passes an engine's outputs on, and its events to a publisher; None publishes nothing.

    Every core that is started begins with an empty cache, and readers are told so.
    """

    def __init__(self, publisher: Publisher | None) -> None:
        self._publisher = publisher

    def on(self, on_output: Callable[[StepOutput], None]) -> Callable[[StepOutput], None]:
        """What a new core is to call with its outputs."""
        publisher = self._publisher
        if publisher is None:
            return on_output
        publisher.publish((KvEvent("cleared"),))

        def pass_on(output: StepOutput) -> None:
            publisher.publish(output.kv_events)
            on_output(output)

        return pass_on

    def close(self) -> None:
        """Let go of the ports."""
        if self._publisher is not None:
            self._publisher.close()
