"""The Kubernetes versions that are supported, and the schemas of their kinds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import kubernetes_validate

VERSIONS = ("1.33", "1.34", "1.35", "1.36", "1.37")
FOREIGN = frozenset(
    {"HTTPRoute", "KVServingRole", "PodMonitor", "PrometheusRule", "ScaledObject", "ServiceMonitor"},
)
"""Kinds that no Kubernetes has by itself: their own definitions judge them, on a real apiserver."""


def faults(manifests: Iterable[Mapping[str, Any]], version: str) -> list[str]:
    """Return what the schemas of ``version`` find wrong, unknown fields among it; foreign kinds are left out."""
    found = []
    for obj in manifests:
        if obj["kind"] in FOREIGN:
            continue
        try:
            kubernetes_validate.validate(json.loads(json.dumps(obj)), version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f"{obj['kind']}/{obj['metadata']['name']}: {error.message}")
    return found
