"""Makes one self-contained HTML page out of results, to read anywhere and send to anyone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.report.page import render_page
from loadtest.report.run_view import run_views

__all__ = ["render_report", "write_report"]


def render_report(results: Sequence[Mapping[str, Any]]) -> str:
    """The page's HTML for one run, or several side by side. Raises ValueError for none."""
    return render_page(run_views(results))


def write_report(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Render and write. Raises OSError, and KeyError for a result without the basic keys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_report(results), encoding="utf-8")
