"""Reports on the wire, and what a gateway keeps of those that it hears."""

import pytest

from cluster.metrics.cluster_figures import GAUGES_FOR_S, TOTALS_FOR_S, ClusterFigures, exposition
from cluster.metrics.figures import Figures, Series
from cluster.metrics.lifetime_totals import LifetimeTotals
from cluster.metrics.metric_report import (
    MetricReport,
    decode_metric_report,
    encode_metric_report,
)
from cluster.streams.stream_codec import EngineReport, Heartbeat
from cluster.streams.token_outbox import MAX_MESSAGE_REPORTS, TokenOutbox
from cluster.wire import token_stream_pb2 as wire
from replicas.engine_stats import EngineStats


def a_report(number=1, source="g", **values):
    figures = Figures("gateway")
    figures.counter("vllm:request_success", "stop").add(values.get("ended", 3))
    figures.histogram("vllm:inter_token_latency_seconds").observe(0.012)
    figures.set("pagoda:open_calls", values.get("open_calls", 2))
    return MetricReport("gateway", (source, "m"), number, figures.series())


def test_a_report_survives_the_wire():
    report = a_report()
    message = wire.MetricReport.FromString(encode_metric_report(report).SerializeToString())
    assert decode_metric_report(message) == report


@pytest.mark.parametrize(
    "stranger",
    [
        Series("vllm:not_yet_invented", (), 1.0),
        Series("vllm:request_success", (), 1.0),
        Series("vllm:num_requests_running", (), 1.0),
        Series("vllm:inter_token_latency_seconds", (), 1.0, (1, 2, 3)),
        Series("pagoda:open_calls", (), 1.0, (1,)),
    ],
)
def test_what_another_version_says_and_this_one_does_not_know_is_left_out(stranger):
    known = a_report()
    mixed = MetricReport("gateway", known.identity, 1, (*known.series, stranger))
    assert decode_metric_report(encode_metric_report(mixed)) == known


@pytest.mark.parametrize("change", [{"origin": "moon"}, {"identity": ["g"]}])
def test_a_report_of_nobody_is_none(change):
    message = encode_metric_report(a_report())
    changed = wire.MetricReport(
        origin=change.get("origin", message.origin),
        identity=change.get("identity", message.identity),
    )
    assert decode_metric_report(changed) is None


def test_an_older_report_changes_nothing():
    figures = ClusterFigures()
    assert figures.take(a_report(number=2), now=0.0)
    assert not figures.take(a_report(number=1), now=1.0)
    assert not figures.take(a_report(number=2), now=1.0)
    assert [report.number for report in figures.reports(1.0)] == [2]


def test_a_silent_process_loses_its_gauges_and_then_its_totals():
    figures = ClusterFigures()
    figures.take(a_report(), now=0.0)

    def shown(now):
        return exposition(figures.reports(now), "")[0].decode()

    assert "pagoda:open_calls{" in shown(GAUGES_FOR_S)
    assert "pagoda:open_calls{" not in shown(GAUGES_FOR_S + 1)
    assert "vllm:request_success_total{" in shown(TOTALS_FOR_S)
    assert "vllm:request_success_total{" not in shown(TOTALS_FOR_S + 1)


def test_buckets_are_summed_up_and_end_at_infinity():
    text = exposition([a_report()], "")[0].decode()
    name = 'vllm:inter_token_latency_seconds_bucket{gateway="g"'
    assert f'{name},le="0.01",model_name="m"}} 0.0' in text
    assert f'{name},le="0.015",model_name="m"}} 1.0' in text
    assert f'{name},le="+Inf",model_name="m"}} 1.0' in text


def test_a_name_that_the_catalogue_lacks_cannot_be_counted():
    figures = Figures("gateway")
    with pytest.raises(KeyError):
        figures.counter("vllm:num_preemptions")
    with pytest.raises(KeyError):
        figures.histogram("pagoda:open_calls")
    with pytest.raises(KeyError):
        figures.set("pagoda:nothing", 1.0)


def test_heartbeats_carry_the_newest_report_of_each_process_a_few_at_a_time():
    outbox = TokenOutbox()
    for number in (1, 2):
        for source in range(MAX_MESSAGE_REPORTS + 3):
            report = encode_metric_report(a_report(number, f"g{source}"))
            outbox.add_metric_report(f"g{source}", report)
    taken = []
    for _ in range(3):
        outbox.add_heartbeat(Heartbeat(0.0, False, True, EngineReport()))
        message = wire.ReplicaMessage.FromString(outbox.take())
        taken.append(list(message.heartbeat.metric_reports))
    assert [len(reports) for reports in taken] == [MAX_MESSAGE_REPORTS, 3, 0]
    assert {report.number for reports in taken for report in reports} == {2}


def test_totals_go_on_over_any_number_of_cores():
    totals = LifetimeTotals()
    first = EngineStats(num_running=3, generated_tokens_total=5, preemptions_total=1)
    assert totals.over(first) is first
    totals.end_core(first)
    assert totals.over(EngineStats()).generated_tokens_total == 5
    totals.end_core(EngineStats(generated_tokens_total=4))
    now = totals.over(EngineStats(num_running=1, generated_tokens_total=2))
    assert (now.num_running, now.generated_tokens_total, now.preemptions_total) == (1, 11, 1)
