"""How long the plan of 1,000 objects takes, against dumping the same manifests as JSON."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path

from kvserving_operator.api.load import load
from kvserving_operator.api.v1alpha1 import KVServing
from kvserving_operator.plan.planning import plan

from .table import Table

OBJECTS = 1000
CASES = Path(__file__).parents[1] / "tests" / "cases" / "specs" / "valid"


def run() -> Table:
    """Plan 1,000 objects made from every valid case under new names."""
    texts = [path.read_text() for path in sorted(CASES.glob("*.yaml"))]
    start = time.perf_counter()
    parsed = [load(text, strict=True) for text in texts]
    load_each = (time.perf_counter() - start) / len(texts)
    servings = [renamed(parsed[i % len(parsed)], f"object-{i}") for i in range(OBJECTS)]

    start = time.perf_counter()
    plans = [plan(serving) for serving in servings]
    planned = time.perf_counter() - start

    start = time.perf_counter()
    size = sum(len(json.dumps(item)) for result in plans for item in result.objects)
    dumped = time.perf_counter() - start

    manifests = sum(len(result.objects) for result in plans)
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows = (
        ("objects", f"{OBJECTS:,}"),
        ("manifests", f"{manifests:,} ({size / 2**20:.1f} MiB as JSON)"),
        ("plan", f"{planned:.2f} s, {planned / OBJECTS * 1e3:.2f} ms an object"),
        ("JSON dump of the same manifests", f"{dumped:.2f} s"),
        ("ratio plan to dump", f"{planned / dumped:.1f}"),
        ("strict load of one object from YAML, CEL rules included", f"{load_each * 1e3:.0f} ms"),
        ("peak resident memory", f"{rss:.0f} MiB"),
    )
    return Table(
        "Plan of 1,000 objects",
        "All twelve valid cases in turn, each under a name of its own.",
        ("what", "figure"),
        rows,
    )


def renamed(serving: KVServing, name: str) -> KVServing:
    """Return the object under another name."""
    return serving.model_copy(update={"metadata": serving.metadata.model_copy(update={"name": name})})
