"""Whose an object is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Owner:
    """The controller that owns an object."""

    kind: str
    name: str
    uid: str


def controller_of(metadata: Mapping[str, Any]) -> Owner | None:
    """Return the controller among the owner references."""
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            return Owner(reference.get("kind", ""), reference.get("name", ""), reference.get("uid", ""))
    return None
