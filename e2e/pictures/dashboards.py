"""Grafana's dashboards as they are read for pictures: what the chart's use of Grafana's format, and no more.

A panel, a unit or an option that nothing here can draw is refused by name, so that no picture leaves a part out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from e2e.pictures.units import UNITS

Kind = Literal["row", "timeseries", "stat", "state-timeline"]
KINDS: tuple[Kind, ...] = ("row", "timeseries", "stat", "state-timeline")
COLUMNS = 24
COLORS = {"green": "#56a64b", "red": "#e02f44", "orange": "#ff9830"}
"""Grafana's names of the colors that the dashboards use."""
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")


class CannotDraw(Exception):
    """A dashboard has something that the pictures do not know."""


@dataclass(frozen=True)
class Place:
    """Where a panel lies on Grafana's grid of 24 columns."""

    left: int
    top: int
    width: int
    height: int


@dataclass(frozen=True)
class Target:
    """One query with its variables filled in, and the pattern of its series' names."""

    expr: str
    legend: str

    def name(self, labels: Mapping[str, str]) -> str:
        """Return what Grafana calls a series; a label that it lacks is empty."""
        return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), self.legend)


@dataclass(frozen=True)
class State:
    """What a value means in a state timeline. ``color`` is one of HTML."""

    text: str
    color: str


@dataclass(frozen=True)
class Panel:
    """One panel. A row is a title alone. ``floor``: the least value that the axis begins at, None for the data's."""

    title: str
    kind: Kind
    place: Place
    description: str = ""
    unit: str = "short"
    floor: float | None = None
    targets: tuple[Target, ...] = ()
    states: Mapping[float, State] | None = None


@dataclass(frozen=True)
class Choice:
    """A variable of a dashboard: the values of a label of a selector's series, one of which was chosen."""

    name: str
    selector: str
    label: str
    chosen: str


@dataclass(frozen=True)
class Dashboard:
    """A dashboard whose variables were chosen."""

    title: str
    description: str
    choices: tuple[Choice, ...]
    panels: tuple[Panel, ...]


def read(path: Path, chosen: Mapping[str, str], rate_interval: str) -> Dashboard:
    """Return the dashboard in ``path`` with ``chosen`` variables, and Grafana's ``$__rate_interval`` as told.

    Raises ``CannotDraw`` for what is unknown, and for a variable without a choice.
    """
    values = json.loads(path.read_text(encoding="utf-8"))
    filled = _Filler(path.name, {**chosen, "__rate_interval": rate_interval})
    try:
        return Dashboard(
            title=values["title"],
            description=values["description"],
            choices=tuple(
                _choice(path.name, variable, filled, chosen)
                for variable in values["templating"]["list"]
                if variable["type"] != "datasource"
            ),
            panels=tuple(_panel(path.name, panel, filled) for panel in values["panels"]),
        )
    except KeyError as missing:
        raise CannotDraw(f"{path.name}: {missing} is missing") from None


@dataclass(frozen=True)
class _Filler:
    """Fills variables into queries."""

    file: str
    values: Mapping[str, str]

    def __call__(self, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            if found[1] not in self.values:
                raise CannotDraw(f"{self.file}: {text!r} asks for ${found[1]}; known: {', '.join(sorted(self.values))}")
            return self.values[found[1]]

        return _VARIABLE.sub(value, text)


def _choice(file: str, variable: Mapping[str, Any], filled: _Filler, chosen: Mapping[str, str]) -> Choice:
    query = variable["query"]["query"] if variable["type"] == "query" else ""
    found = re.fullmatch(r"label_values\((.+),\s*(\w+)\)", query)
    if found is None:
        raise CannotDraw(f"{file}: variable {variable['name']} is no label_values(SERIES, LABEL) but {query!r}")
    if variable["name"] not in chosen:
        raise CannotDraw(f"{file}: variable {variable['name']} has no value; choose one")
    return Choice(variable["name"], filled(found[1]), found[2], chosen[variable["name"]])


def _panel(file: str, panel: Mapping[str, Any], filled: _Filler) -> Panel:
    title, kind = panel["title"], panel["type"]
    if kind not in KINDS:
        raise CannotDraw(f"{file}: panel {title!r} is of type {kind!r}; known: {', '.join(KINDS)}")
    grid = panel["gridPos"]
    place = Place(grid["x"], grid["y"], grid["w"], grid["h"])
    if kind == "row":
        if panel["collapsed"] or panel["panels"]:
            raise CannotDraw(f"{file}: row {title!r} is collapsed, which hides its panels")
        return Panel(title, kind, place)
    defaults = panel["fieldConfig"]["defaults"]
    if panel["fieldConfig"]["overrides"]:
        raise CannotDraw(f"{file}: panel {title!r} has overrides")
    if (unit := defaults["unit"]) not in UNITS:
        raise CannotDraw(f"{file}: panel {title!r} has the unit {unit!r}; known: {', '.join(UNITS)}")
    return Panel(
        title=title,
        kind=kind,
        place=place,
        description=panel["description"],
        unit=unit,
        floor=defaults.get("min"),
        targets=tuple(Target(filled(target["expr"]), target["legendFormat"]) for target in panel["targets"]),
        states=_states(file, title, defaults) if kind == "state-timeline" else None,
    )


def _states(file: str, title: str, defaults: Mapping[str, Any]) -> dict[float, State]:
    found: dict[float, State] = {}
    for mapping in defaults["mappings"]:
        if mapping["type"] != "value":
            raise CannotDraw(f"{file}: panel {title!r} has a mapping of type {mapping['type']!r}; known: value")
        for value, to in mapping["options"].items():
            if to["color"] not in COLORS:
                raise CannotDraw(f"{file}: panel {title!r} has the color {to['color']!r}; known: {', '.join(COLORS)}")
            found[float(value)] = State(to["text"], COLORS[to["color"]])
    return found
