"""What Prometheus answers to the queries of a dashboard; a query without an answer is an error.

Grafana shows such a panel empty, and nobody notices that its query asks for what no process exports.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from e2e.pictures.dashboards import Dashboard, Panel

Point = tuple[float, float]


class NoData(Exception):
    """Queries without data, or excuses for queries that do not exist; one line for each."""


@dataclass(frozen=True)
class Series:
    """Labels, and points of time and value; no value is NaN or infinite."""

    labels: Mapping[str, str]
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Span:
    """A time from ``start`` to ``end`` in seconds since the epoch, looked at every ``step`` seconds."""

    start: float
    end: float
    step: float


class Asked(Protocol):
    """A Prometheus, or what answers in its place."""

    def query_range(self, expr: str, span: Span) -> Sequence[Series]:
        """Return the series of an expression over a span."""

    def label_values(self, selector: str, label: str, span: Span) -> Sequence[str]:
        """Return the values that a label has in the series of a selector."""


@dataclass(frozen=True)
class Line:
    """A series under the name that its panel gives it."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Answered:
    """A panel with its lines."""

    panel: Panel
    lines: tuple[Line, ...]


Excuses = Mapping[tuple[str, str], str]
"""Title of a panel and legend of its query, and why a sound run may have no data for it."""


def answers(dashboard: Dashboard, prometheus: Asked, span: Span, excuses: Excuses) -> tuple[Answered, ...]:
    """Ask every query of the dashboard over ``span``.

    Raises ``NoData`` when a variable does not offer what was chosen, when a query has no data and no excuse, and when
    an excuse is for a query that does not exist.
    """
    wrong = []
    for choice in dashboard.choices:
        offered = prometheus.label_values(choice.selector, choice.label, span)
        if choice.chosen not in offered:
            wrong.append(
                f"variable {choice.name}: {choice.chosen!r} is not among the values of {choice.label} in "
                f"{choice.selector}: {', '.join(offered) or 'there are none'}"
            )
    found: list[Answered] = []
    without: dict[tuple[str, str], str] = {}
    for panel in dashboard.panels:
        lines: list[Line] = []
        for target in panel.targets:
            several = [
                Line(target.name(series.labels), series.points)
                for series in prometheus.query_range(target.expr, span)
                if series.points
            ]
            if not several:
                without[panel.title, target.legend] = target.expr
            lines += sorted(several, key=lambda line: line.name)
        found.append(Answered(panel, tuple(lines)))
    wrong += [
        f"panel {title!r}, query {legend!r} has no data: {expr}"
        for (title, legend), expr in without.items()
        if (title, legend) not in excuses
    ]
    known = {(panel.title, target.legend) for panel in dashboard.panels for target in panel.targets}
    wrong += [
        f"panel {title!r}, query {legend!r} is excused ({reason}), and does not exist: take the excuse out"
        for (title, legend), reason in excuses.items()
        if (title, legend) not in known
    ]
    if wrong:
        raise NoData(f"{dashboard.title}:\n" + "\n".join(f"  {line}" for line in wrong))
    return tuple(found)


def finite(points: Sequence[tuple[float, str]]) -> tuple[Point, ...]:
    """Return the points whose value is a number: a quotient of nothing by nothing is none."""
    numbers = ((at, float(value)) for at, value in points)
    return tuple((at, value) for at, value in numbers if math.isfinite(value))
