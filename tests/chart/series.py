"""The expressions of dashboards and alerts, and the names of the series in them."""

from __future__ import annotations

import json
import re

import yaml
from tests.chart.charts import CHART

_WORDS = {"absent", "and", "avg", "by", "bool", "count", "histogram_quantile", "increase", "le", "max", "or", "rate"}
_WORDS |= {"sum", "time", "unless", "vector"}


def dashboards() -> list[str]:
    """Return every expression of the three dashboards."""
    found = []
    for path in sorted((CHART / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            found += [target["expr"] for target in panel.get("targets", ())]
    return found


def alerts() -> list[str]:
    """Return every expression of the alerts."""
    groups = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def series(expr: str) -> set[str]:
    """Return the names of the series in ``expr``; raises ``ValueError`` for a word that is neither."""
    bare = re.sub(r"\{[^{}]*\}", "", expr)
    bare = re.sub(r"\[[^\[\]]*\]", "", bare)
    bare = re.sub(r"by \([\w, ]*\)", "", bare)
    words = set(re.findall(r"[a-zA-Z_][\w:]*", bare)) - _WORDS
    if unknown := {word for word in words if "_" not in word}:
        raise ValueError(f"neither a series nor a known word: {sorted(unknown)} in {expr}")
    return words
