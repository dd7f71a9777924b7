"""The alert rules parse, fire when they should, and ask only for metrics that exist."""

import asyncio
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from cluster.metrics.cluster_figures import exposition
from cluster.metrics.gateway_metrics import GatewayMetrics
from cluster.metrics.replica_metrics import ReplicaMetrics
from cluster.streams.stream_codec import EngineReport
from replicas.engine_info import EngineInfo
from tests.k8s.test_dashboards import NAME, known_names

FOLDER = Path(__file__).parents[2] / "k8s" / "prometheus"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (Debian: apt-get install prometheus)"
)


def rules():
    groups = yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def promtool(*arguments, given=None):
    return subprocess.run(
        [PROMTOOL, *arguments],
        cwd=FOLDER,
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_metric_of_a_rule_exists():
    asked = {name for rule in rules() for name in NAME.findall(rule["expr"])}
    assert asked
    assert asked <= known_names()


def test_every_alert_says_how_bad_it_is_and_what_to_do():
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description"} <= set(rule["annotations"])


def test_every_alert_is_tested():
    tests = (FOLDER / "rules_test.yaml").read_text()
    untested = [rule["alert"] for rule in rules() if tests.count(rule["alert"]) < 2]
    assert untested == []


@needs_promtool
@pytest.mark.slow
def test_promtool_accepts_the_rules():
    checked = promtool("check", "rules", "rules.yaml")
    assert checked.returncode == 0, checked.stderr


@needs_promtool
@pytest.mark.slow
def test_every_alert_fires_when_it_should_and_not_before():
    tested = promtool("test", "rules", "rules_test.yaml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def a_scrape(accept=""):
    info = EngineInfo("m", "f", "mixed", "f32", "k", True, 1, 8, 4, 1, 64, 4, (("load", 1.5),))
    replica = ReplicaMetrics(replica_id='a "quoted" name', pool="mixed")
    replica.describe(info, served_name="")
    report = replica.report(EngineReport(epoch=1), num_coalesced_steps=0, num_tasks=1)
    gateway = GatewayMetrics(gateway_id="g", model_name="m")
    gateway.count_response(200)
    gateway.set_replicas({("a", "mixed", "active"): 1.0}, {("a", "mixed"): 0.0})
    return exposition([gateway.publish(), report], accept)[0].decode()


@needs_promtool
@pytest.mark.slow
def test_promtool_accepts_what_is_scraped():
    checked = promtool("check", "metrics", given=a_scrape())
    # Names of vLLM hold colons, and one of its histograms is called a total; the rest is clean.
    complaints = [
        line
        for line in checked.stderr.splitlines()
        if "should not contain ':'" not in line and "vllm:iteration_tokens_total" not in line
    ]
    assert complaints == []
    assert checked.returncode in (0, 3), checked.stderr


@pytest.mark.parametrize(
    "accept",
    [
        "",
        # Prometheus 2.42 and 3, in their own words.
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;"
        "q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
        "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,*/*;q=0.1",
    ],
)
def test_every_prometheus_gets_the_names_that_boards_and_rules_ask_for(accept):
    scraped = set(re.findall(r"^([\w:]+)(?:\{| )", a_scrape(accept), re.MULTILINE))
    assert scraped
    assert scraped <= known_names()


@needs_promtool
@pytest.mark.slow
def test_promtool_notices_what_cannot_be_read():
    assert promtool("check", "metrics", given="a{b=c} 1\n").returncode == 1


def test_a_scrape_without_any_report_shows_the_gateway_itself():
    body, _ = asyncio.run(GatewayMetrics(gateway_id="alone").scrape(""))
    assert re.search(r'^pagoda:open_calls\{gateway="alone",model_name=""\} 0', body.decode(), re.M)
