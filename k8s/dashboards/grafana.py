"""The form of a Grafana board, and the few shapes of PromQL that its panels are made of."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

COLUMNS = 24
ROW_HEIGHT = 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

ALL_MODELS = 'model_name=~"$model"'
ONE_REPLICA = 'model_name=~"$model", replica=~"$replica"'


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph. queries: legend and PromQL. width: of the 24 columns of a row."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    width: int = 8
    kind: str = "timeseries"
    stacked: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True)
class Board:
    """A page of rows. variables: name and the query whose values can be chosen."""

    uid: str
    title: str
    rows: Sequence[tuple[str, Sequence[Panel]]]
    variables: Sequence[tuple[str, str]] = field(default=())


def rate(name: str, chosen: str = ALL_MODELS, by: str = "") -> str:
    """Events per second, summed over everything but `by`."""
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({name}{{{chosen}}}[$__rate_interval]))"


def quantile(share: float, name: str, chosen: str = ALL_MODELS, by: str = "") -> str:
    """A percentile of a histogram."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {rate(f'{name}_bucket', chosen, labels)})"


def quantiles(name: str, chosen: str = ALL_MODELS) -> list[tuple[str, str]]:
    """The three percentiles that are looked at."""
    return [(f"p{share * 100:.0f}", quantile(share, name, chosen)) for share in (0.5, 0.95, 0.99)]


def mean(name: str, chosen: str = ALL_MODELS, by: str = "") -> str:
    """Mean of a histogram's observations."""
    return f"{rate(f'{name}_sum', chosen, by)} / {rate(f'{name}_count', chosen, by)}"


def render(board: Board) -> str:
    """The board as Grafana reads it, always in the same form."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in board.rows:
        panels.append(_heading(title, top, len(panels) + 1))
        top += 1
        left = 0
        for panel in row:
            if left + panel.width > COLUMNS:
                top, left = top + ROW_HEIGHT, 0
            panels.append(_panel(panel, left, top, len(panels) + 1))
            left += panel.width
        top += ROW_HEIGHT
    document = {
        "uid": board.uid,
        "title": board.title,
        "tags": ["pagoda"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "templating": {"list": [_data_source(), *map(_variable, board.variables)]},
        "panels": panels,
    }
    return json.dumps(document, indent=2) + "\n"


def _heading(title: str, top: int, number: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
    return {"id": number, "type": "row", "title": title, "gridPos": place, "panels": []}


def _panel(panel: Panel, left: int, top: int, number: int) -> dict[str, Any]:
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 25} if panel.stacked else {}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": ROW_HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": query,
                "legendFormat": legend or "__auto",
            }
            for index, (legend, query) in enumerate(panel.queries)
        ],
    }


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus"}


def _variable(variable: tuple[str, str]) -> dict[str, Any]:
    name, query = variable
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }
