"""Writes trees of spans through OpenTelemetry's SDK; imported only when tracing is on."""

import sys

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from cluster.config import TracingConfig
from cluster.tracing.call_spans import Span


class OtelSink:
    """Starts and ends the spans of a tree at once, at the moments that they had.

    A trace goes on where the client's traceparent says; the client's decision to sample is kept,
    and `sample_ratio` decides for calls without one. Sending is a thread's business.
    """

    def __init__(self, exporter: SpanExporter, *, sample_ratio: float, instance_id: str) -> None:
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
            resource=Resource.create(
                {"service.name": "pagoda", "service.instance.id": instance_id}
            ),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("pagoda")
        self._propagator = TraceContextTextMapPropagator()

    def write(self, span: Span, *, wall_offset_s: float, headers: dict[str, str]) -> None:
        """Take one tree. wall_offset_s: what makes its moments Unix seconds."""
        parent = self._propagator.extract(headers, Context())
        self._write(span, parent, wall_offset_s, SpanKind.SERVER)

    def flush(self) -> None:
        """Wait until everything that was written is sent."""
        self._provider.force_flush()

    def close(self) -> None:
        """Send what is left; may block for some seconds."""
        self._provider.shutdown()

    def _write(self, span: Span, parent: Context, offset_s: float, kind: SpanKind) -> None:
        started = self._tracer.start_span(
            span.name,
            context=parent,
            kind=kind,
            attributes=span.attributes,
            start_time=_nanoseconds(span.started_at + offset_s),
        )
        if started.is_recording():
            below = set_span_in_context(started, parent)
            for child in span.children:
                self._write(child, below, offset_s, SpanKind.INTERNAL)
        if span.error:
            started.set_attribute("error.type", span.error)
            started.set_status(Status(StatusCode.ERROR, span.error))
        started.end(end_time=_nanoseconds(span.ended_at + offset_s))


def exporter_of(config: TracingConfig) -> SpanExporter:
    """Where spans go: to a collector that speaks OTLP over HTTP, or to standard output."""
    if config.traces_exporter == "console":
        # Serve puts its own log file in the place of sys.stdout.
        return ConsoleSpanExporter(out=sys.__stdout__ or sys.stdout)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=config.otlp_traces_endpoint)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
