"""A replica passes gateways' figures on, and takes nobody's word for another."""

import pytest

from cluster.metrics.metric_report import MAX_REPORT_BYTES, MetricReport
from tests.cluster.metrics.test_metric_report import a_report
from tests.cluster.replica_harness import a_gateway, start_replica, until


def no_call(request, route):
    raise AssertionError("nothing is asked of it")


@pytest.fixture
async def two_gateways():
    replica = await start_replica()
    gateways = {}
    for name in ("one", "two"):
        _, directory, dispatcher = a_gateway(no_call, gateway_id=name)
        heard = []
        directory.hear_metrics(heard.append)
        directory.on_replica_set({"a": replica.service.announcement.to_metadata()})
        gateways[name] = (directory, heard, dispatcher)
    for directory, *_ in gateways.values():
        await until(lambda d=directory: d.health().num_replicas == 1)
    yield gateways
    for directory, _, dispatcher in gateways.values():
        await dispatcher.close()
        await directory.close()
    await replica.service.close()


def of_gateways(heard):
    return [report for report in heard if report.origin == "gateway"]


async def test_a_report_reaches_the_other_gateway_and_not_its_sender(two_gateways):
    (one, heard_one, _), (_, heard_two, _) = two_gateways["one"], two_gateways["two"]
    report = a_report(source="one")
    one.send_metric_report(report)
    await until(lambda: of_gateways(heard_two) == [report])
    assert of_gateways(heard_one) == []


async def test_the_replicas_own_figures_reach_both(two_gateways):
    for _, heard, _ in two_gateways.values():
        await until(lambda heard=heard: any(r.origin == "replica" for r in heard))


@pytest.mark.parametrize(
    "forged",
    [
        a_report(source="two"),
        MetricReport("replica", ("one", "mixed", "m"), 1, ()),
        MetricReport("gateway", (), 1, ()),
    ],
)
async def test_a_report_in_anothers_name_is_dropped(two_gateways, forged, caplog):
    (one, _, _), (_, heard_two, _) = two_gateways["one"], two_gateways["two"]
    one.send_metric_report(forged)
    await until(lambda: "metric report dropped gateway=one" in caplog.text)
    one.send_metric_report(a_report(number=7, source="one"))
    await until(lambda: [report.number for report in of_gateways(heard_two)] == [7])


async def test_a_report_beyond_the_bound_is_dropped(two_gateways, caplog):
    (one, _, _) = two_gateways["one"]
    huge = MetricReport("gateway", ("one", "m" * MAX_REPORT_BYTES), 1, ())
    one.send_metric_report(huge)
    await until(lambda: "metric report dropped gateway=one" in caplog.text)
