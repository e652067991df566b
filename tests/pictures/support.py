"""A dashboard file, and a Prometheus of fixed answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from e2e.pictures.answers import Series, Span
from tests.chart.charts import CHART

SPAN = Span(1000.0, 1060.0, 2.0)
CHOSEN = {"namespace": "prod", "name": "qwen"}
FILES = sorted((CHART / "dashboards").glob("*.json"))


def steady(value: float, **labels: str) -> Series:
    """Return a series that keeps its value over the whole span."""
    times = range(int(SPAN.start), int(SPAN.end) + 1, int(SPAN.step))
    return Series(labels, tuple((float(at), value) for at in times))


@dataclass
class Fixed:
    """Answers each expression by the series in ``known``, else by ``default``."""

    default: Sequence[Series] = ()
    known: Mapping[str, Sequence[Series]] = field(default_factory=dict)
    values: Sequence[str] = tuple(CHOSEN.values())
    asked: list[str] = field(default_factory=list)

    def query_range(self, expr: str, span: Span) -> Sequence[Series]:
        assert span == SPAN
        self.asked.append(expr)
        return self.known.get(expr, self.default)

    def label_values(self, selector: str, label: str, span: Span) -> Sequence[str]:
        self.asked.append(f"{label} of {selector}")
        return self.values


def panel(title: str = "A panel", kind: str = "timeseries", **more: Any) -> dict[str, Any]:
    """Return a panel as Grafana writes it, with one query; ``more`` replaces whole sections."""
    return {
        "type": kind,
        "title": title,
        "description": "What it means.",
        "gridPos": {"h": 8, "w": 8, "x": 0, "y": 0},
        "fieldConfig": {"defaults": {"unit": "short", "mappings": []}, "overrides": []},
        "targets": [{"expr": "up", "legendFormat": "{{pod}}"}],
        **more,
    }


def dashboard(folder: Path, *panels: dict[str, Any], variables: Sequence[dict[str, Any]] = ()) -> Path:
    """Write a dashboard and return its file."""
    file = folder / "board.json"
    board = {"title": "Board", "description": "Ours.", "templating": {"list": list(variables)}, "panels": list(panels)}
    file.write_text(json.dumps(board))
    return file


def elements(svg: str, tag: str) -> list[ElementTree.Element]:
    """Return the elements of an SVG of its own, in order."""
    return [element for element in ElementTree.fromstring(svg).iter() if element.tag.rpartition("}")[2] == tag]
