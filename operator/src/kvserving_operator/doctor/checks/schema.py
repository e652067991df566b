"""Whether the cluster's CRD has all fields that this version knows: others are dropped without a word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...api.schema import object_schema
from ...api.v1alpha1 import KIND
from ...listing import some
from ..facts import Body
from ..findings import Finding, warning

_MOST = 6


def findings(published: Body | None) -> Iterator[Finding]:
    """One finding when ``published``, the schema as the apiserver serves it, lacks fields or has others."""
    if published is None:
        return
    ours, theirs = paths(object_schema()), paths(published)
    missing = sorted(path for path in ours - theirs if path.rpartition(".")[0] in theirs | {""})
    if missing:
        yield warning(
            "crd-old",
            f"CustomResourceDefinition {KIND}",
            f"it lacks {some(missing, _MOST)}",
            why="the apiserver drops these fields from objects without an error, and from the status",
            fix="apply the CRD of this version: `kubectl apply --server-side -f crds/`, or upgrade the chart with "
            "crds.install",
        )
    extra = sorted(path for path in theirs - ours if path.rpartition(".")[0] in ours | {""})
    if extra:
        yield warning(
            "command-old",
            f"CustomResourceDefinition {KIND}",
            f"this command does not know {some(extra, _MOST)}",
            why="what it says of objects that use these fields may be wrong",
            fix="use the command of the operator's version",
        )


def paths(schema: Mapping[str, Any], prefix: str = "") -> set[str]:
    """Dotted paths of every field below ``spec`` and ``status``; members of lists count as their list's."""
    found: set[str] = set()
    for name, member in (schema.get("properties") or {}).items():
        if not prefix and name not in ("spec", "status"):
            continue
        path = f"{prefix}.{name}" if prefix else name
        found |= {path} | paths(member, path) | paths(member.get("items") or {}, path)
    return found
