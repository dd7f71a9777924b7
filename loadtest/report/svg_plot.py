"""Draws small plots as inline SVG whose colours come from the page, so dark mode just works."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from loadtest.report.scale import Scale, linear_scale, log_scale, short_number

WIDTH, HEIGHT = 460, 270
LEFT, RIGHT, TOP, BOTTOM = 60, 12, 14, 42
NUM_COLOURS = 8

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one run. `colour` counts runs from 0; a gap in a line is a NaN value."""

    name: str
    points: Sequence[Point]
    colour: int
    kind: str = "line"
    is_faint: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A dashed line across the plot at an x or y value, with a word beside it."""

    value: float
    text: str
    is_vertical: bool = True


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot: title and axis names are shown, series are drawn in order."""

    title: str
    x_name: str
    y_name: str
    series: Sequence[Series]
    marks: Sequence[Mark] = field(default=())
    x_is_log: bool = False
    y_top: float | None = None
    y_is_share: bool = False

    def svg(self) -> str:
        """The plot as an <svg> element; an empty string where no series has a point."""
        points = [p for one in self.series for p in one.points if math.isfinite(p[1])]
        if not points:
            return ""
        x_scale, y_scale = self._scales(points)
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title)}">',
            *_grid(x_scale, y_scale, y_is_share=self.y_is_share),
            *(_mark(mark, index, x_scale, y_scale) for index, mark in enumerate(self.marks)),
            *(_series(one, x_scale, y_scale) for one in self.series),
            *self._axis_names(),
            "</svg>",
        ]
        return "".join(parts)

    def _scales(self, points: Sequence[Point]) -> tuple[Scale, Scale]:
        xs = [x for x, _ in points] + [m.value for m in self.marks if m.is_vertical]
        ys = [y for _, y in points] + [m.value for m in self.marks if not m.is_vertical]
        make_x = log_scale if self.x_is_log else linear_scale
        low_x = min((x for x in xs if x > 0), default=1.0) if self.x_is_log else min(0.0, *xs)
        x_scale = make_x(low_x, max(xs), LEFT, WIDTH - RIGHT)
        top = self.y_top if self.y_top is not None else max(ys)
        return x_scale, linear_scale(0.0, top, HEIGHT - BOTTOM, TOP)

    def _axis_names(self) -> list[str]:
        middle = (LEFT + WIDTH - RIGHT) / 2
        return [
            f'<text class="name" x="{middle:.0f}" y="{HEIGHT - 6}" text-anchor="middle">'
            f"{escape(self.x_name)}</text>",
            f'<text class="name" transform="translate(11 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) '
            f'rotate(-90)" text-anchor="middle">{escape(self.y_name)}</text>',
        ]


def _grid(x_scale: Scale, y_scale: Scale, *, y_is_share: bool) -> list[str]:
    parts = []
    for tick in y_scale.ticks(5):
        y = y_scale.place(tick)
        word = f"{tick:.0%}" if y_is_share else short_number(tick)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{word}</text>')
    for tick in x_scale.ticks(6):
        x = x_scale.place(tick)
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        )
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
            f"{short_number(tick)}</text>"
        )
    return parts


def _mark(mark: Mark, index: int, x_scale: Scale, y_scale: Scale) -> str:
    if mark.is_vertical:
        x = x_scale.place(mark.value)
        # The word stands on the side where there is room for it.
        is_right = x < (LEFT + WIDTH) / 2
        anchor, gap = ("start", 4) if is_right else ("end", -4)
        line = f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        # One above the other, so that the words of near marks do not lie on each other.
        word_y = HEIGHT - BOTTOM - 6 - 15 * index
        place = f'x="{x + gap:.1f}" y="{word_y}" text-anchor="{anchor}"'
    else:
        y = y_scale.place(mark.value)
        line = f'<line class="mark" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        place = f'x="{LEFT + 6}" y="{y + 15:.1f}" text-anchor="start"'
    return f'{line}<text class="mark-name" {place}>{escape(mark.text)}</text>'


def _series(series: Series, x_scale: Scale, y_scale: Scale) -> str:
    colour = f"c{series.colour % NUM_COLOURS}" + (" faint" if series.is_faint else "")
    if series.kind == "dots":
        dots = "".join(
            f'<circle cx="{x_scale.place(x):.1f}" cy="{y_scale.place(y):.1f}" r="1.9"/>'
            for x, y in series.points
        )
        return f'<g class="dots {colour}">{dots}</g>'
    path = _path(series.points, x_scale, y_scale)
    line = f'<path class="line {colour}" d="{path}"><title>{escape(series.name)}</title></path>'
    if series.kind != "line-and-dots":
        return line
    dots = "".join(
        f'<circle cx="{x_scale.place(x):.1f}" cy="{y_scale.place(y):.1f}" r="3.5">'
        f"<title>{x:.3g}, {y:.3g}</title></circle>"
        for x, y in series.points
    )
    return f'{line}<g class="dots {colour}">{dots}</g>'


def _path(points: Sequence[Point], x_scale: Scale, y_scale: Scale) -> str:
    steps = []
    is_pen_up = True
    for x, y in points:
        if not math.isfinite(y):
            is_pen_up = True
            continue
        letter = "M" if is_pen_up else "L"
        steps.append(f"{letter}{x_scale.place(x):.1f} {y_scale.place(y):.1f}")
        is_pen_up = False
    return "".join(steps)
