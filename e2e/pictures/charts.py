"""Charts of panels as SVG: lines over time, a number with its line, states over time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from e2e.pictures.answers import Answered, Line, Point, Span
from e2e.pictures.dashboards import State
from e2e.pictures.units import UNITS, marks

PALETTE = ("#5a9e4f", "#e0a526", "#4f8fc9", "#d9622b", "#a352cc", "#2f9e9e", "#c15c8f", "#8a8f3c", "#6f6f9e", "#9e6f5a")
_GRID = "#e3e5e8"
_TEXT = "#5b6066"
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 18, 8, 20
_NAMES = 116
_NO_STATE = State("", "#b7bac0")


def color(number: int) -> str:
    """Return the color of a panel's line by its place among them."""
    return PALETTE[number % len(PALETTE)]


def draw(answered: Answered, width: int, height: int, span: Span) -> str:
    """Return the chart of a panel."""
    kinds = {"timeseries": _lines, "stat": _number, "state-timeline": _states}
    return kinds[answered.panel.kind](answered, width, height, span)


def _lines(answered: Answered, width: int, height: int, span: Span) -> str:
    unit = UNITS[answered.panel.unit]
    values = [value for line in answered.lines for _, value in line.points]
    floor = answered.panel.floor
    ticks = marks(min(values, default=0.0) if floor is None else floor, max(values, default=0.0), answered.panel.unit)
    area = _Area(_LEFT, width - _RIGHT, _TOP, height - _BOTTOM, span, ticks[0], ticks[-1])
    parts = [
        f'<line x1="{area.left}" x2="{area.right}" y1="{area.y(tick):.1f}" y2="{area.y(tick):.1f}" stroke="{_GRID}"/>'
        f'<text x="{area.left - 6}" y="{area.y(tick) + 4:.1f}" text-anchor="end">{escape(unit(tick))}</text>'
        for tick in ticks
    ]
    parts += _clock(area, area.bottom)
    if not values:
        middle = (area.left + area.right) / 2
        parts.append(f'<text x="{middle}" y="{(area.top + area.bottom) / 2}" text-anchor="middle">No data</text>')
    for number, line in enumerate(answered.lines):
        for piece in pieces(line.points, span.step):
            parts.append(_curve(area, piece, color(number), filled=True))
    return _svg(width, height, parts)


def _number(answered: Answered, width: int, height: int, span: Span) -> str:
    [line] = answered.lines
    values = [value for _, value in line.points]
    area = _Area(0, width, height * 0.6, height, span, min(*values, 0.0), max(*values, 1.0))
    shown = escape(UNITS[answered.panel.unit](values[-1]))
    parts = [_curve(area, piece, PALETTE[0], filled=True) for piece in pieces(line.points, span.step)]
    parts.append(
        f'<text x="{width / 2}" y="{height * 0.48}" text-anchor="middle" style="font-size:{height * 0.42:.0f}px;'
        f'fill:{PALETTE[0]}">{shown}</text>'
    )
    return _svg(width, height, parts)


def _states(answered: Answered, width: int, height: int, span: Span) -> str:
    bottom = height - _BOTTOM
    area = _Area(_NAMES, width - _RIGHT, _TOP, bottom, span, 0, 1)
    states = answered.panel.states or {}
    row = (bottom - _TOP) / max(1, len(answered.lines))
    parts = _clock(area, bottom)
    for number, line in enumerate(answered.lines):
        top = _TOP + number * row
        parts.append(f'<text x="{_NAMES - 6}" y="{top + row / 2 + 4:.1f}" text-anchor="end">{escape(line.name)}</text>')
        for begin, end, value in runs(line, span):
            state = states.get(value, _NO_STATE)
            left, right = area.x(begin), area.x(end)
            parts.append(
                f'<rect x="{left:.1f}" y="{top + 1:.1f}" width="{right - left:.1f}" height="{row - 2:.1f}" '
                f'fill="{state.color}" fill-opacity="0.75"/>'
            )
            if right - left > 7 * len(state.text) + 6 and row > 11:
                middle = f'x="{(left + right) / 2:.1f}" y="{top + row / 2 + 4:.1f}"'
                parts.append(f'<text {middle} text-anchor="middle" fill="#fff">{escape(state.text)}</text>')
    return _svg(width, height, parts)


def pieces(points: Sequence[Point], step: float) -> list[list[Point]]:
    """Return the parts of a line between which there was no value."""
    found: list[list[Point]] = []
    for point in points:
        if not found or point[0] - found[-1][-1][0] > 1.5 * step:
            found.append([])
        found[-1].append(point)
    return found


def runs(line: Line, span: Span) -> list[tuple[float, float, float]]:
    """Return begin, end and value of each stretch in which a line keeps its value; each ends where the next begins."""
    found: list[tuple[float, float, float]] = []
    for piece in pieces(line.points, span.step):
        starts = [piece[0], *(b for a, b in pairwise(piece) if a[1] != b[1])]
        ends = [at for at, _ in starts[1:]] + [min(piece[-1][0] + span.step, span.end)]
        found += [(at, end, value) for (at, value), end in zip(starts, ends, strict=True)]
    return found


class _Area:
    """Turns time and value into places of the picture."""

    def __init__(
        self, left: float, right: float, top: float, bottom: float, span: Span, least: float, most: float
    ) -> None:
        self.left, self.right, self.top, self.bottom = left, right, top, bottom
        self.span = span
        self._least, self._most = least, most

    def x(self, at: float) -> float:
        share = (at - self.span.start) / (self.span.end - self.span.start)
        return self.left + share * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - (value - self._least) / (self._most - self._least) * (self.bottom - self.top)


def _curve(area: _Area, piece: Sequence[Point], stroke: str, *, filled: bool) -> str:
    path = " ".join(f"{area.x(at):.1f},{area.y(value):.1f}" for at, value in piece)
    made = f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="1.5"/>'
    if filled:
        first, last = area.x(piece[0][0]), area.x(piece[-1][0])
        made += (
            f'<polygon points="{first:.1f},{area.bottom} {path} {last:.1f},{area.bottom}" fill="{stroke}" '
            'fill-opacity="0.1"/>'
        )
    return made


def _clock(area: _Area, bottom: float) -> list[str]:
    """Marks of time below a chart, as minutes and seconds since the beginning."""
    seconds = area.span.end - area.span.start
    apart = next(every for every in (15, 30, 60, 120, 300, 600, 3600) if seconds / every <= 8 or every == 3600)
    parts = []
    for number in range(int(seconds // apart) + 1):
        x = area.x(area.span.start + number * apart)
        minutes, rest = divmod(number * apart, 60)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{area.top}" y2="{bottom}" stroke="{_GRID}"/>'
            f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{minutes}:{rest:02}</text>'
        )
    return parts


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    style = f"font:11px sans-serif;fill:{_TEXT}"
    return f'<svg width="{width}" height="{height}" style="{style}">{"".join(parts)}</svg>'
