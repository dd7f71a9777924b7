"""docs/metrics.md says what the catalogue says."""

import re
from pathlib import Path

import pytest

from cluster.metrics.catalogue import CATALOGUE
from cluster.metrics.reference_table import BEGIN, with_reference

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
NAME = re.compile(r"`((?:vllm|pagoda):\w+)`")


def test_the_list_is_the_catalogue():
    text = DOCUMENT.read_text()
    assert with_reference(text) == text, (
        "run: python -m cluster.metrics.reference_table docs/metrics.md"
    )


def test_every_name_in_the_text_exists():
    exposed = {metric.exposed_name for metric in CATALOGUE}
    assert set(NAME.findall(DOCUMENT.read_text())) == exposed


def test_a_metric_that_the_document_lacks_is_noticed():
    text = DOCUMENT.read_text()
    gone = re.sub(r"\n\| `vllm:num_preemptions_total`.*", "", text)
    assert gone != text
    assert with_reference(gone) == text


def test_a_document_without_a_place_for_the_list_is_refused():
    with pytest.raises(ValueError, match=re.escape(BEGIN)):
        with_reference("# Metrics\n")


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_every_metric_is_well_formed(metric):
    assert re.fullmatch(r"(vllm|pagoda):[a-z][a-z0-9_]*", metric.name)
    assert metric.help.endswith(".")
    assert (metric.kind == "histogram") == bool(metric.buckets)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert len(set(metric.every_label)) == len(metric.every_label)
    spans = metric.kind == "histogram" and metric.unit == "seconds"
    assert spans == bool(metric.moments)


def test_a_gap_of_a_millisecond_has_buckets_on_both_sides():
    gaps = next(m for m in CATALOGUE if m.name == "vllm:inter_token_latency_seconds").buckets
    assert [bound for bound in gaps if 0.0004 < bound < 0.003] == [0.0005, 0.001, 0.0015, 0.002]
