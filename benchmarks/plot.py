"""A plot of lines over a logarithmic axis, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 200, 40, 48
COLORS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a", "#bf3989", "#0a7ea4")
MARKS = 5

Line = Sequence[tuple[float, float]]


def plot(title: str, axes: tuple[str, str], lines: Mapping[str, Line], *, level: float | None = None) -> str:
    """Return the SVG of ``lines`` by name, points of x > 0 and y >= 0, with ``axes`` of x and y.

    ``level`` is a value of y that is marked. Raises ValueError without a point.
    """
    points = [point for line in lines.values() for point in line]
    if not points:
        raise ValueError(f"the plot {title!r} has no point")
    xs = sorted({x for x, _ in points})
    step, top = _marks(max([y for _, y in points] + ([level] if level else [])))
    low, high = math.log(xs[0]), math.log(xs[-1])
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def across(x: float) -> float:
        return LEFT + (wide * (math.log(x) - low) / (high - low) if high > low else wide / 2)

    def up(y: float) -> float:
        return TOP + tall * (1 - y / top)

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 22, title, size=14),
        _text(LEFT + wide / 2, HEIGHT - 10, axes[0], anchor="middle"),
        _text(16, TOP + tall / 2, axes[1], anchor="middle", turned=True),
    ]
    for number in range(round(top / step) + 1):
        y = number * step
        drawn.append(_stroke(LEFT, up(y), LEFT + wide, up(y), "#d0d7de"))
        drawn.append(_text(LEFT - 8, up(y) + 4, f"{y:g}", anchor="end"))
    for x in xs:
        drawn.append(_text(across(x), TOP + tall + 18, f"{x:,.0f}", anchor="middle"))
    if level is not None:
        drawn.append(_stroke(LEFT, up(level), LEFT + wide, up(level), "#24292f", dashes="6 4"))
    for number, (name, line) in enumerate(lines.items()):
        drawn += _line(name, [(across(x), up(y)) for x, y in sorted(line)], COLORS[number % len(COLORS)], number)
    return "\n".join([*drawn, "</svg>"]) + "\n"


def _line(name: str, at: Line, color: str, number: int) -> Iterator[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
    for x, y in at:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>'
    y = TOP + 8 + 20 * number
    yield _stroke(WIDTH - RIGHT + 16, y, WIDTH - RIGHT + 40, y, color, width=2)
    yield _text(WIDTH - RIGHT + 46, y + 4, name)


def _marks(most: float) -> tuple[float, float]:
    """Return the distance of the marks of an axis, and its end: about ``MARKS`` of them up to ``most``."""
    rough = (most or 1.0) / MARKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return step, step * math.ceil(round((most or 1.0) / step, 9))


def _stroke(x: float, y: float, to_x: float, to_y: float, color: str, *, width: int = 1, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
    return f'<line {ends} stroke="{color}" stroke-width="{width}"{dashed}/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"{turn}>{escape(text)}</text>'
