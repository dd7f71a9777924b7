"""Opens the tracing that the settings ask for, and hands every call that ends to it."""

import importlib.util
import time
from collections.abc import Callable
from typing import Protocol

from cluster.config import TracingConfig
from cluster.metrics.call_meter import CallMeter
from cluster.tracing.call_spans import Span, call_spans


class TracingUnavailable(RuntimeError):
    """Tracing was asked for, and what it needs is not installed."""


class SpanSink(Protocol):
    """Takes finished trees of spans; must not block."""

    def write(self, span: Span, *, wall_offset_s: float, headers: dict[str, str]) -> None:
        """Take one tree. wall_offset_s: what makes its moments Unix seconds."""
        ...

    def close(self) -> None:
        """Send what is left; may block for some seconds."""
        ...


class CallTracer:
    """Makes a trace of every call that ends. clock: the meters'; wall_clock: Unix seconds."""

    def __init__(
        self,
        sink: SpanSink,
        *,
        model_name: str,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._sink = sink
        self._model_name = model_name
        self._clock = clock
        self._wall_clock = wall_clock

    def __call__(self, meter: CallMeter) -> None:
        """A call is over."""
        self._sink.write(
            call_spans(meter, model_name=self._model_name),
            wall_offset_s=self._wall_clock() - self._clock(),
            headers=dict(meter.origin.trace_headers),
        )

    def close(self) -> None:
        """Send what is left; may block for some seconds."""
        self._sink.close()


def open_tracer(config: TracingConfig, *, model_name: str, gateway_id: str) -> CallTracer | None:
    """None when tracing is off; TracingUnavailable if a package for it is missing."""
    if config.traces_exporter == "none":
        return None
    needed = ["opentelemetry.sdk"]
    if config.traces_exporter == "otlp":
        needed.append("opentelemetry.exporter.otlp.proto.http")
    missing = [name for name in needed if not _is_installed(name)]
    if missing:
        raise TracingUnavailable(
            f"traces_exporter={config.traces_exporter} needs {', '.join(missing)}: "
            "pip install 'pagoda-serve[tracing]'"
        )
    # Imported here because a gateway without tracing should not pay for it.
    from cluster.tracing.otel_sink import OtelSink, exporter_of

    sink = OtelSink(
        exporter_of(config), sample_ratio=config.traces_sample_ratio, instance_id=gateway_id
    )
    return CallTracer(sink, model_name=model_name)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
