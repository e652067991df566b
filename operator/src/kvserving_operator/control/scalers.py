"""Scale targets and scalers as far as decisions need them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..api import serving_role

Failing = tuple[tuple[str, str, str], ...]
"""(type, reason, message) of a scaler's conditions that do not hold."""

# Conditions that say whether a scaler can do its work; others change all the time.
_TYPES = {"HorizontalPodAutoscaler": ("AbleToScale", "ScalingActive"), "ScaledObject": ("Ready",)}
SCALERS = tuple(_TYPES)
_LONGEST = 1024


@dataclass(frozen=True, slots=True)
class Scale:
    """A scale target: its ``generation``, and what its status says, which is of generation ``observed``."""

    generation: int
    observed: int | None
    replicas: int | None
    selector: str | None


def scale_of(body: Mapping[str, Any], kind: str) -> Scale | None:
    """Return what an object shows to scalers; ``None`` for one that is no scale target."""
    if kind != serving_role.KIND:
        return None
    status = body.get("status") or {}
    return Scale(
        body["metadata"].get("generation") or 0,
        status.get("observedGeneration"),
        status.get("replicas"),
        status.get("selector"),
    )


def failing_of(body: Mapping[str, Any], kind: str) -> Failing:
    """Return why an object that scales cannot do so; empty where it can, and for every other object."""
    conditions = (body.get("status") or {}).get("conditions") or () if kind in _TYPES else ()
    return tuple(
        (c["type"], c.get("reason") or "", (c.get("message") or "")[:_LONGEST])
        for c in conditions
        if c.get("type") in _TYPES[kind] and c.get("status") == "False"
    )
