"""Grafana's panels and dashboards as plain values: only what ours need."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

_WIDTH = 24
_HEIGHT = 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

Kind = Literal["timeseries", "stat", "state-timeline"]


@dataclass(frozen=True)
class Query:
    """PromQL and the name of its series, in which ``{{label}}`` is that label's value."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel: a title, what it means, its queries. ``unit`` is Grafana's name of it.

    ``good`` is the value that a state timeline shows in green: 0 for conditions that tell of trouble.
    """

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Kind = "timeseries"
    width: int = 8
    good: Literal[0, 1] = 1


@dataclass(frozen=True)
class Row:
    """Panels under a title."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a dashboard, from the values of a label."""

    name: str
    query: str


def dashboard(name: str, title: str, description: str, variables: Sequence[Variable], rows: Sequence[Row]) -> str:
    """Return the JSON of a dashboard; panels flow from left to right in rows of 24 columns."""
    made: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        made.append(
            {
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": _WIDTH, "x": 0, "y": top},
                "panels": [],
            }
        )
        top, left = top + 1, 0
        for panel in row.panels:
            if left + panel.width > _WIDTH:
                top, left = top + _HEIGHT, 0
            made.append(_panel(panel, left, top))
            left += panel.width
        top += _HEIGHT
    for number, panel_values in enumerate(made, 1):
        panel_values["id"] = number
    values = {
        "uid": f"kvserving-{name}",
        "title": title,
        "description": description,
        "tags": ["kvserving"],
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), *(_variable(variable) for variable in variables)]},
        "panels": made,
    }
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def _panel(panel: Panel, left: int, top: int) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": {"h": _HEIGHT, "w": panel.width, "x": left, "y": top},
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": query.expr, "legendFormat": query.legend}
            for number, query in enumerate(panel.queries)
        ],
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    made: dict[str, Any] = {"unit": panel.unit}
    if panel.kind == "state-timeline":
        true, false = ("green", "red") if panel.good else ("orange", "green")
        states = {"1": ("true", true), "0": ("false", false), "-1": ("unknown", "orange")}
        options = {value: {"text": text, "color": color} for value, (text, color) in states.items()}
        made["mappings"] = [{"type": "value", "options": options}]
        made["color"] = {"mode": "thresholds"}
    elif panel.kind == "timeseries":
        made["min"] = 0
        made["custom"] = {"fillOpacity": 10, "showPoints": "never"}
    return made


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
    if panel.kind == "state-timeline":
        return {"showValue": "auto", "mergeValues": True}
    return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
    }
