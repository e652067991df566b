"""Prints every metric series that engines have from this package, as JSON: ``python -m kvserving_connector.declared``.

The documentation is made from it. Imports no vLLM, so that it runs where engines do not.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any

from kvserving_connector.core.loads import Tier
from kvserving_connector.core.refusal import Refusal
from kvserving_connector.core.staging_desk import Direct
from kvserving_connector.metrics import guard_counters
from kvserving_connector.store.client import Reason
from kvserving_connector.vllm.series import CHOICES, OF_HANDOFFS, OF_LOADS, OF_STORES, OF_WORKERS, Series

_ENUMERATIONS: tuple[type[StrEnum], ...] = (Refusal, Direct, Reason, Tier)


def groups() -> list[dict[str, Any]]:
    """Return the series by the part that counts them: title, where it runs, series, and values of their labels."""
    return [
        _group("Guard", "The API server of every engine: the guard stands in front of it.", _of_guard()),
        _group("Transfers", "Engines with `NixlConnector`, so those of both roles of a pair.", OF_HANDOFFS),
        _group("Choices", "Engines with `MultiConnector`; the label is the child's name.", CHOICES.values()),
        _group("Loads", "Engines with `TieredOffloadConnector` or `WorkerCacheConnector`.", OF_LOADS),
        _group("Store", "The same engines, where they have an L2 of ours.", OF_STORES),
        _group("Worker caches", "Engines with `WorkerCacheConnector`: their workers own L1.", OF_WORKERS),
    ]


def meanings(kind: type[StrEnum]) -> dict[str, str]:
    """Return the sentence that follows each member in the source, empty where there is none."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    told: dict[str, str] = {str(member): "" for member in kind}
    last = ""
    for statement in body.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            last = str(kind[statement.targets[0].id])
        elif last and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            told[last] = str(statement.value.value)
    return told


def _of_guard() -> Iterator[Series]:
    guard = guard_counters()
    for metric in (getattr(guard, field.name) for field in fields(guard)):
        [family] = metric.describe()
        label = next(iter(metric._labelnames), None)
        values = tuple(str(reason) for reason in Refusal) if label else ()
        yield Series(family.name, family.documentation, label, values, family.type == "gauge")


def _group(title: str, where: str, several: Iterable[Series]) -> dict[str, Any]:
    series = tuple(several)
    by_values: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for one in series:
        if one.label is not None and one.values:
            by_values.setdefault((one.label, one.values), []).append(_name(one))
    return {
        "title": title,
        "where": where,
        "series": [
            {"name": _name(one), "type": "gauge" if one.gauge else "counter", "label": one.label, "text": one.text}
            for one in series
        ],
        "labels": [
            {"name": label, "of": names, "values": _told(values)} for (label, values), names in by_values.items()
        ],
    }


def _name(series: Series) -> str:
    return series.name if series.gauge else f"{series.name}_total"


def _told(values: tuple[str, ...]) -> Mapping[str, str]:
    """The meaning of each value, empty where no enumeration has exactly these."""
    found = next((kind for kind in _ENUMERATIONS if tuple(map(str, kind)) == values), None)
    return dict.fromkeys(values, "") if found is None else meanings(found)


if __name__ == "__main__":
    print(json.dumps(groups(), indent=1))
