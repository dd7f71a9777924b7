"""The trace of one call: its tree, its times, where it hangs in the client's trace."""

import asyncio
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cluster.config import TracingConfig
from cluster.errors import RequestRefused
from cluster.metrics.call_meter import CallOrigin
from cluster.metrics.gateway_metrics import GatewayMetrics
from cluster.tracing import call_tracer
from cluster.tracing.call_spans import call_spans
from cluster.tracing.call_tracer import CallTracer, TracingUnavailable, open_tracer
from cluster.tracing.otel_sink import OtelSink
from replicas.handoff import HandoffNews
from replicas.request import (
    EngineRequest,
    Refusal,
    RefusalReason,
    SamplingParams,
    Timeline,
    TokenEntry,
)

REQUEST = EngineRequest(
    "cmpl-1-0", (1, 2, 3), SamplingParams(max_tokens=8, temperature=0.5), root=b""
)
NEWS = HandoffNews(1, "adopted", num_tokens=3, num_bytes=4096, transport="shm")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-1] + "0"
# The engine's clock is far from the gateway's.
LINE = Timeline(arrived_at=9000.2, scheduled_at=9000.5, first_token_at=9000.9, received_at=9000.1)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def run_call(metrics, clock, *, headers=None, error=None, requests=(REQUEST,)):
    """Arrives at 100, submitted at 100.25, admitted at 101, tokens at 102 and 103."""
    clock.now = 100.0
    origin = CallOrigin(100.0, "chat", "cmpl-1", headers or {})
    meter = metrics.meter(requests, origin)
    clock.now = 100.25
    with meter:
        clock.now = 101.0
        meter.note_admitted()
        clock.now = 102.0
        first = TokenEntry("cmpl-1-0", 0, 0, 0, (7,), num_cached_tokens=2, timeline=LINE)
        for index in range(len(meter.choices)):
            meter.note_entry(index, first, 1)
        if error is not None:
            raise error
        clock.now = 103.0
        last = replace(first, index=1, timeline=replace(LINE, finished_at=9001.9))
        for index in range(len(meter.choices)):
            meter.note_entry(index, last, 2)
            meter.note_end(index, "length")
        clock.now = 103.5
    return meter


@pytest.fixture
def traced():
    """Runs a call and returns its spans by name."""
    exporters = []

    def run(*, ratio=1.0, **call):
        exporter = InMemorySpanExporter()
        exporters.append(exporter)
        clock = Clock()
        sink = OtelSink(exporter, sample_ratio=ratio, instance_id="g")
        tracer = CallTracer(sink, model_name="m", clock=clock, wall_clock=lambda: clock() + 1e9)
        metrics = GatewayMetrics(clock=clock, on_call_end=tracer)
        try:
            run_call(metrics, clock, **call)
        finally:
            sink.flush()
            sink.close()
        return exporter.get_finished_spans()

    return run


def seconds(nanoseconds):
    return nanoseconds / 1e9 - 1e9


def test_the_tree_holds_every_stage_with_the_times_that_it_had(traced):
    spans = {span.name: span for span in traced()}
    times = {
        name: (
            pytest.approx(seconds(span.start_time), abs=1e-5),
            pytest.approx(seconds(span.end_time), abs=1e-5),
        )
        for name, span in spans.items()
    }
    assert times == {
        "chat m": (100.0, 103.5),
        "gateway": (100.0, 100.25),
        "router": (100.25, 101.0),
        "queue": (101.2, 101.6),
        "prefill": (101.6, 102.0),
        "decode": (102.0, 103.0),
    }
    root = spans["chat m"].context
    for name, span in spans.items():
        assert span.context.trace_id == root.trace_id
        assert (span.parent and span.parent.span_id) == (None if name == "chat m" else root.span_id)


def test_the_root_bears_the_attributes_of_generative_ai(traced):
    root = next(span for span in traced() if span.name == "chat m")
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.response.id": "cmpl-1",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.request.max_tokens": 8,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
    }
    assert expected.items() <= dict(root.attributes).items()
    assert root.status.is_unset or root.status.is_ok


def test_the_trace_goes_on_where_the_client_says(traced):
    spans = {span.name: span for span in traced(headers={"traceparent": PARENT})}
    root = spans["chat m"]
    assert f"{root.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{root.parent.span_id:016x}" == PARENT.split("-")[2]


@pytest.mark.parametrize(
    ("headers", "ratio", "is_traced"),
    [
        ({}, 0.0, False),
        ({"traceparent": PARENT}, 0.0, True),
        ({"traceparent": UNSAMPLED}, 1.0, False),
    ],
)
def test_the_clients_decision_goes_before_the_ratio(traced, headers, ratio, is_traced):
    assert bool(traced(headers=headers, ratio=ratio)) == is_traced


def test_a_traceparent_that_makes_no_sense_begins_a_trace_of_its_own(traced):
    root = next(span for span in traced(headers={"traceparent": "00-zz-1"}) if ":" not in span.name)
    assert root.context.trace_id


def test_every_choice_has_its_own_stages(traced):
    spans = traced(requests=(replace(REQUEST, num_choices=2),))
    decodes = [span.attributes["pagoda.choice"] for span in spans if span.name == "decode"]
    assert decodes == [0, 1]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionError(), "client_left"),
        (asyncio.CancelledError(), "client_left"),
        (RequestRefused(Refusal(RefusalReason.EXPIRED, "too long")), "expired"),
        (ValueError("x"), "ValueError"),
    ],
)
def test_a_call_that_failed_says_so(error, kind):
    kept = []
    clock = Clock()
    metrics = GatewayMetrics(clock=clock, on_call_end=kept.append)
    with pytest.raises(type(error)):
        run_call(metrics, clock, error=error)
    assert call_spans(kept[0], model_name="m").error == kind


def test_an_error_marks_the_span(traced):
    with pytest.raises(ValueError, match="x"):
        traced(error=ValueError("x"))


def test_nothing_is_opened_unless_it_is_asked_for():
    assert open_tracer(TracingConfig(), model_name="m", gateway_id="g") is None


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(call_tracer, "_is_installed", lambda name: "otlp" not in name)
    with pytest.raises(TracingUnavailable, match=r"exporter.otlp.*pagoda-serve\[tracing\]"):
        open_tracer(TracingConfig(traces_exporter="otlp"), model_name="m", gateway_id="g")


@pytest.mark.parametrize("settings", [{"traces_exporter": "jaeger"}, {"traces_sample_ratio": 2.0}])
def test_settings_that_cannot_be_meant_are_refused(settings):
    name = next(iter(settings))
    with pytest.raises(ValueError, match=name):
        TracingConfig(**settings)


def test_a_gateway_without_tracing_loads_nothing_of_it():
    # FastAPI itself loads OpenTelemetry's interface, which is light; the SDK is not.
    code = (
        "import cluster.gateway.http_app, cluster.tracing.call_tracer, sys;"
        "print('opentelemetry.sdk' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "False"


def test_the_console_exporter_opens_and_closes(capfd):
    tracer = open_tracer(TracingConfig(traces_exporter="console"), model_name="m", gateway_id="g")
    clock = time.monotonic
    metrics = GatewayMetrics(clock=clock, on_call_end=tracer)
    with metrics.meter((REQUEST,), CallOrigin(clock())):
        pass
    tracer.close()
    assert "text_completion m" in capfd.readouterr().out


def test_a_hand_off_is_a_span_from_the_first_token_to_its_adoption():
    clock = Clock()
    meter = run_call(GatewayMetrics(clock=clock), clock)
    meter.choices[0].handoff = (102.5, NEWS)
    (span,) = [s for s in call_spans(meter, model_name="m").children if s.name == "handoff"]
    assert (span.started_at, span.ended_at) == (102.0, 102.5)
    assert span.attributes["pagoda.handoff.transport"] == "shm"
    assert span.attributes["pagoda.handoff.bytes"] == 4096
