"""Writes the part of docs/metrics.md that lists every metric, from the catalogue.

Run `python -m cluster.metrics.reference_table docs/metrics.md` after a change of the catalogue.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from cluster.metrics.catalogue import CATALOGUE, IDENTITY_LABELS, Metric, Origin

BEGIN = "<!-- the catalogue begins -->"
END = "<!-- the catalogue ends -->"

_TITLES: dict[Origin, str] = {
    "gateway": "Observed by gateways",
    "replica": "Counted by replicas",
}


def reference() -> str:
    """Every metric, as Markdown."""
    return "\n\n".join(_section(origin) for origin in _TITLES)


def with_reference(text: str) -> str:
    """A document with the list brought up to date; ValueError if it has no place for it."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected a document with the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{reference()}\n\n{END}{after}"


def main(paths: Iterable[str]) -> None:
    """Bring these documents up to date."""
    for path in map(Path, paths):
        path.write_text(with_reference(path.read_text()))


def _section(origin: Origin) -> str:
    labels = ", ".join(f"`{label}`" for label in IDENTITY_LABELS[origin])
    rows = "\n".join(_row(metric) for metric in CATALOGUE if metric.origin == origin)
    return (
        f"### {_TITLES[origin]}\n\nEvery series bears {labels}.\n\n"
        "| name | kind | unit | more labels | meaning | from, to |\n|---|---|---|---|---|---|\n"
        f"{rows}"
    )


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    moments = f"`{metric.moments}`" if metric.moments else ""
    cells = (f"`{metric.exposed_name}`", metric.kind, metric.unit, labels, metric.help, moments)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main(sys.argv[1:])
