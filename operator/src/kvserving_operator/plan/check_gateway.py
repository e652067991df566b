"""Checks of the Gateways that the router's route names, as the Gateway API makes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..api import base
from ..api.fault_words import suggestion
from ..api.faults import Fault
from .context import Context

_TEXTS: Mapping[str, tuple[re.Pattern[str], int, str]] = {
    "name": (re.compile(base.NAME_PATTERN), 253, "the name of a Gateway"),
    "namespace": (re.compile(base.NAMESPACE_PATTERN), 63, "a namespace"),
    "sectionName": (re.compile(base.NAME_PATTERN), 253, "the name of a listener"),
    "group": (re.compile(rf"|{base.NAME_PATTERN}"), 253, "an API group such as gateway.networking.k8s.io"),
    "kind": (re.compile(r"[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?"), 63, "a kind such as Gateway"),
}


def faults(ctx: Context) -> Iterator[Fault]:
    """Faults in ``router.gateway.parentRefs``."""
    gateway = ctx.spec.router.gateway
    seen: list[tuple[Any, ...]] = []
    for index, reference in enumerate(gateway.parent_refs if gateway is not None else ()):
        path = f"spec.router.gateway.parentRefs[{index}]"
        yield from _reference(reference, path)
        target = tuple(str(reference.get(key)) for key in ("group", "kind", "namespace", "name", "sectionName", "port"))
        if target in seen:
            yield Fault(path, "names the same Gateway and listener as an entry before it: remove it")
        seen.append(target)


def _reference(reference: Mapping[str, Any], path: str) -> Iterator[Fault]:
    if reference.get("name") is None:
        yield Fault(f"{path}.name", "is required: the name of the Gateway that carries the route")
    for key, value in reference.items():
        if key == "port":
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65535:
                yield Fault(f"{path}.port", f"{str(value)[:60]!r} is not a port from 1 to 65535", str(value)[:60])
        elif key not in _TEXTS:
            yield Fault(f"{path}.{key}", f"unknown field{suggestion(str(key), (*_TEXTS, 'port'))}", str(key))
        elif value is not None:
            pattern, longest, expected = _TEXTS[key]
            if not isinstance(value, str) or len(value) > longest or not pattern.fullmatch(value):
                yield Fault(f"{path}.{key}", f"{str(value)[:60]!r} is not {expected}", str(value)[:60])
