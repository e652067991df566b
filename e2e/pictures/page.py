"""A dashboard as a page: its grid, titles, charts and legends."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from e2e.pictures import charts
from e2e.pictures.answers import Answered, Span
from e2e.pictures.dashboards import COLUMNS, Dashboard, Place

WIDTH = 1200
_HEAD = 62
_UNIT = 25
_GAP = 6
_TITLE = 24
_LEGEND_LINE = 16
_LETTER = 6.2
_STYLE = """
body { margin: 0; background: #f4f5f5; font: 12px sans-serif; color: #24292e; position: relative }
h1 { font-size: 18px; margin: 0; padding: 10px 10px 2px }
.about { padding: 0 10px; color: #5b6066 }
.panel, .row { position: absolute; box-sizing: border-box; overflow: hidden }
.panel { background: #fff; border: 1px solid #dcdfe3; border-radius: 2px }
.title { font-weight: bold; padding: 5px 8px 0; height: 19px; white-space: nowrap; overflow: hidden }
.row { font-weight: bold; font-size: 14px; padding: 5px 4px }
.legend { padding: 0 8px; font-size: 11px; color: #5b6066; line-height: 16px }
.legend span { white-space: nowrap; margin-right: 12px }
.legend i { display: inline-block; width: 12px; height: 3px; margin-right: 4px; vertical-align: middle }
"""


def size(dashboard: Dashboard) -> tuple[int, int]:
    """Return width and height of the page in pixels."""
    return WIDTH, _HEAD + _UNIT * max(panel.place.top + panel.place.height for panel in dashboard.panels) + _GAP


def render(dashboard: Dashboard, answered: Sequence[Answered], span: Span, note: str) -> str:
    """Return the page as HTML; ``note`` says where the numbers come from."""
    chosen = "".join(f" · {escape(choice.name)}: {escape(choice.chosen)}" for choice in dashboard.choices)
    panels = "".join(_panel(one, span) for one in answered)
    return (
        f'<!DOCTYPE html><html><head><meta charset="utf-8"><style>{_STYLE}</style></head><body>'
        f"<h1>{escape(dashboard.title)}</h1>"
        f'<div class="about">{escape(dashboard.description)}{chosen} · {escape(note)}</div>{panels}</body></html>'
    )


def _panel(answered: Answered, span: Span) -> str:
    panel = answered.panel
    place, width, height = _box(panel.place)
    title = escape(panel.title)
    if panel.kind == "row":
        return f'<div class="row" style="{place}">{title}</div>'
    legend, lines = _legend(answered, width)
    chart = charts.draw(answered, width - 2, height - _TITLE - lines * _LEGEND_LINE - 6, span)
    about = escape(panel.description, quote=True)
    return f'<div class="panel" style="{place}" title="{about}"><div class="title">{title}</div>{chart}{legend}</div>'


def _box(place: Place) -> tuple[str, int, int]:
    column = WIDTH / COLUMNS
    left, top = round(place.left * column) + _GAP // 2, _HEAD + place.top * _UNIT + _GAP // 2
    width, height = round(place.width * column) - _GAP, place.height * _UNIT - _GAP
    return f"left:{left}px;top:{top}px;width:{width}px;height:{height}px", width, height


def _legend(answered: Answered, width: int) -> tuple[str, int]:
    """The names of the lines, and how many lines of text they take."""
    if answered.panel.kind != "timeseries":
        return "", 0
    lines, used = 1, 0.0
    for line in answered.lines:
        needed = 30 + _LETTER * len(line.name)
        if used and used + needed > width - 16:
            lines, used = lines + 1, 0.0
        used += needed
    names = "".join(
        f'<span><i style="background:{charts.color(number)}"></i>{escape(line.name)}</span> '
        for number, line in enumerate(answered.lines)
    )
    return f'<div class="legend">{names}</div>', lines
