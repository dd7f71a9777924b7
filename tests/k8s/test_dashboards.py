"""The Grafana boards are what their source makes, and ask only for metrics that exist."""

import json
import re
from pathlib import Path

import pytest

from cluster.metrics.catalogue import CATALOGUE, METRICS

FOLDER = Path(__file__).parents[2] / "k8s" / "dashboards"
BOARDS = ["overview.json", "replica.json"]
NAME = re.compile(r"\b(?:vllm|pagoda):\w+")


@pytest.fixture
def generate(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import generate

    return generate


def queries_of(board):
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]


def known_names():
    """Every name that a query may hold: a histogram's series have suffixes."""
    plain = {metric.exposed_name for metric in CATALOGUE if metric.kind != "histogram"}
    histograms = [metric.name for metric in CATALOGUE if metric.kind == "histogram"]
    return plain | {
        f"{name}{suffix}" for name in histograms for suffix in ("_bucket", "_sum", "_count")
    }


def test_the_files_are_what_the_source_makes(generate):
    assert sorted(generate.BOARDS) == sorted(path.name for path in FOLDER.glob("*.json"))
    for name, make in generate.BOARDS.items():
        assert (FOLDER / name).read_text() == generate.render(make()), (
            "run: python k8s/dashboards/generate.py"
        )


@pytest.mark.parametrize("name", BOARDS)
def test_every_metric_of_a_panel_exists(name):
    board = json.loads((FOLDER / name).read_text())
    asked = {found for query in queries_of(board) for found in NAME.findall(query)}
    assert asked <= known_names()


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_asks_for_something_and_is_within_the_page(name):
    board = json.loads((FOLDER / name).read_text())
    taken = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (place["x"] + dx, place["y"] + dy)
            for dx in range(place["w"])
            for dy in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["targets"]
    identities = [panel["id"] for panel in board["panels"]]
    assert len(set(identities)) == len(identities)


def test_every_metric_is_on_a_board():
    boards = [json.loads((FOLDER / name).read_text()) for name in BOARDS]
    text = " ".join(query for board in boards for query in queries_of(board))
    assert [name for name in METRICS if name not in text] == []


@pytest.mark.parametrize("name", BOARDS)
def test_labels_that_a_panel_groups_by_are_those_of_its_metric(name):
    board = json.loads((FOLDER / name).read_text())
    for query in queries_of(board):
        for labels, metric in re.findall(r"by \(([\w, ]+)\) \(rate\(([\w:]+)\{", query):
            stem = re.sub(r"_(bucket|sum|count|total)$", "", metric)
            known = METRICS.get(stem) or METRICS[metric.removesuffix("_bucket")]
            grouped = {label.strip() for label in labels.split(",")} - {"le"}
            assert grouped <= set(known.every_label), query
