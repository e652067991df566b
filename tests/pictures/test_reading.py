"""Dashboards are read whole: what a picture could not show is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from e2e.pictures.dashboards import KINDS, CannotDraw, read
from e2e.pictures.units import UNITS
from tests.pictures.support import CHOSEN, FILES, dashboard, panel


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_every_panel_of_the_charts_dashboards_is_read_with_its_variables_filled_in(file: Path) -> None:
    raw = json.loads(file.read_text())
    found = read(file, CHOSEN, "8s")
    assert [(one.title, one.kind) for one in found.panels] == [(p["title"], p["type"]) for p in raw["panels"]]
    assert [len(one.targets) for one in found.panels] == [len(p.get("targets", ())) for p in raw["panels"]]
    exprs = [target.expr for one in found.panels for target in one.targets]
    assert exprs
    assert [expr for expr in exprs if "$" in expr] == []
    assert any("[8s]" in expr for expr in exprs)
    assert [choice.name for choice in found.choices] == (["namespace", "name"] if file.stem != "fleet" else [])


def test_a_choice_may_depend_on_another_one() -> None:
    [service] = [file for file in FILES if file.stem == "service"]
    namespace, name = read(service, CHOSEN, "8s").choices
    assert (namespace.selector, namespace.label, namespace.chosen) == ("kvserving_condition", "namespace", "prod")
    assert (name.selector, name.label, name.chosen) == ('kvserving_condition{namespace="prod"}', "name", "qwen")


def test_the_dashboards_use_every_kind_that_can_be_drawn() -> None:
    used = {panel["type"] for file in FILES for panel in json.loads(file.read_text())["panels"]}
    assert used == set(KINDS)


_STATE = {"type": "value", "options": {"1": {"text": "true", "color": "mauve"}}}


def config(**defaults: Any) -> dict[str, Any]:
    return {"defaults": {"unit": "s", **defaults}, "overrides": []}


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (panel(kind="heatmap"), "panel 'A panel' is of type 'heatmap'; known: row, timeseries, stat, state-timeline"),
        (panel(fieldConfig=config(unit="furlongs")), f"'furlongs'; known: {', '.join(UNITS)}"),
        (panel(fieldConfig={**config(), "overrides": [{}]}), "panel 'A panel' has overrides"),
        (panel(targets=[{"expr": "up{a='$who'}", "legendFormat": ""}]), r"asks for \$who; known: __rate_interval"),
        ({**panel(kind="row"), "collapsed": True, "panels": []}, "row 'A panel' is collapsed"),
        (panel(kind="state-timeline", fieldConfig=config(mappings=[_STATE])), "has the color 'mauve'; known: green"),
        ({key: value for key, value in panel().items() if key != "targets"}, "board.json: 'targets' is missing"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused_by_name(made: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(CannotDraw, match=named):
        read(dashboard(tmp_path, made), CHOSEN, "8s")


def test_a_variable_without_a_choice_is_refused(tmp_path: Path) -> None:
    variable = {"name": "pod", "type": "query", "query": {"query": "label_values(up, pod)"}}
    with pytest.raises(CannotDraw, match="variable pod has no value; choose one"):
        read(dashboard(tmp_path, panel(), variables=[variable]), CHOSEN, "8s")


def test_a_series_is_called_by_its_labels(tmp_path: Path) -> None:
    made = panel(targets=[{"expr": "up", "legendFormat": "{{pod}} of {{ zone }}"}])
    [found] = read(dashboard(tmp_path, made), CHOSEN, "8s").panels
    assert found.targets[0].name({"pod": "a"}) == "a of "
