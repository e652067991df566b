"""The operator's process: conditions, reasons, events, metrics, rights, exit codes."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

from ..control.conditions import TYPES
from ..control.events import EventKind
from ..control.exit_codes import ExitCode
from ..control.metrics import Metrics
from ..control.permissions import TABLE
from ..reasons import Reason
from .markdown import code, codes, members, page, table

PAGE = "operator-reference.md"


def render() -> str:
    """Return the page."""
    parts = (
        ("Conditions", ("Type", "Meaning"), ((code(name), text) for name, text in TYPES.items())),
        ("Reasons", ("Reason", "Meaning"), ((code(reason), text) for reason, text in members(Reason))),
        ("Events", ("Reason", "Type", "When"), ((code(kind.reason), kind.type, kind.meaning) for kind in EventKind)),
        ("Metrics", ("Series", "Type", "Labels", "Meaning"), _metrics()),
        ("Permissions", ("Resource", "Verbs", "Why"), ((code(r.full_name), ", ".join(r.verbs), r.why) for r in TABLE)),
        ("Exit status", ("Code", "Meaning"), ((str(kind.value), text) for kind, text in members(ExitCode))),
    )
    return page(
        "Operator reference",
        "The metrics of the engines are on [a page of their own](reference-metrics.md).",
        *(text for title, header, rows in parts for text in (f"## {title}", table(header, rows))),
    )


def _metrics() -> Iterable[tuple[str, ...]]:
    metrics = Metrics()
    metrics.watch_queue(lambda: 0, lambda: 0.0)
    metrics.watch_objects(lambda: ())
    families = sorted(metrics.registry.collect(), key=lambda family: family.name)
    return [
        (
            code(f"{family.name}{'_total' if family.type == 'counter' else ''}"),
            family.type,
            codes(_labels(metrics, family)),
            family.documentation,
        )
        for family in families
    ]


def _labels(metrics: Metrics, family: Metric) -> tuple[str, ...]:
    """The labels, which a family has only when it was made for one scrape; else its collector has them."""
    for collector in metrics.registry._collector_to_names:
        if isinstance(collector, MetricWrapperBase) and collector._name == family.name:
            return tuple(collector._labelnames)
    return tuple(getattr(family, "_labelnames", ()))
