"""What Ray is told of a replica's figures."""

from dataclasses import dataclass, field

import pytest
import ray.util.metrics

from cluster.metrics import ray_export
from cluster.metrics.metric_report import MetricReport
from cluster.metrics.ray_export import RayExport
from cluster.metrics.replica_metrics import ReplicaMetrics
from cluster.streams.stream_codec import EngineReport
from replicas.engine_stats import EngineStats

TAGS = {"replica": "r", "pool": "mixed", "model_name": ""}


@dataclass
class Told:
    """In the place of Ray's metrics: remembers what it is told."""

    values: dict = field(default_factory=dict)

    def make(self, name, description, tag_keys):
        assert description
        return Instrument(self.values, name, tag_keys)


@dataclass
class Instrument:
    values: dict
    name: str
    tag_keys: tuple

    def set(self, value, tags):
        self.values[self._key(tags)] = value

    def inc(self, value, tags):
        key = self._key(tags)
        self.values[key] = self.values.get(key, 0.0) + value

    def _key(self, tags):
        assert tuple(tags) == self.tag_keys
        return (self.name, *tags.values())


@pytest.fixture
def told(monkeypatch):
    made = Told()
    monkeypatch.setattr(ray_export, "Gauge", made.make)
    monkeypatch.setattr(ray_export, "Counter", made.make)
    return made.values


def reports(*all_stats):
    metrics = ReplicaMetrics(replica_id="r", pool="mixed")
    for stats in all_stats:
        metrics.on_step(stats)
        yield metrics.report(EngineReport(epoch=1, stats=stats), num_coalesced_steps=0, num_tasks=1)


def a_step(number, tokens):
    return EngineStats(
        step=number,
        max_num_seqs=4,
        num_rows=2,
        num_running=2,
        num_decode_tokens=tokens,
        generated_tokens_total=tokens * number,
    )


def test_gauges_totals_and_sums_arrive_under_names_that_ray_takes(told):
    export = RayExport(interval_s=0.0)
    for report in reports(a_step(1, 2), a_step(2, 2), a_step(3, 2)):
        export(report)
    identity = ("r", "mixed", "")
    assert told[("vllm_num_requests_running", *identity)] == 2
    assert told[("vllm_generation_tokens", *identity)] == 6
    assert told[("vllm_iteration_tokens_total_sum", *identity)] == 6
    assert told[("vllm_iteration_tokens_total_count", *identity)] == 3
    assert not [name for name, *_ in told if ":" in name]


def test_what_did_not_change_is_not_told_again(told):
    export = RayExport(interval_s=0.0)
    for report in reports(a_step(1, 2), a_step(1, 2)):
        export(report)
    assert told[("vllm_generation_tokens", "r", "mixed", "")] == 2


def test_reports_that_come_too_soon_are_skipped(told):
    now = 0.0
    export = RayExport(clock=lambda: now, interval_s=5.0)
    first, second, third = reports(a_step(1, 2), a_step(2, 2), a_step(3, 2))
    export(first)
    now = 4.9
    export(second)
    assert told[("vllm_generation_tokens", "r", "mixed", "")] == 2
    now = 5.0
    export(third)
    assert told[("vllm_generation_tokens", "r", "mixed", "")] == 6


def test_rays_own_classes_take_it_again_and_again():
    assert ray_export.Gauge is ray.util.metrics.Gauge
    export = RayExport(interval_s=0.0)
    report = next(reports(a_step(1, 2)))
    export(report)
    export(MetricReport(report.origin, report.identity, 2, report.series))
