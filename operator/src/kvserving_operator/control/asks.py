"""Which fields of an object ask for what its pods cannot get: an image or room. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..plan import template
from ..plan.image_sources import image_source

_INSUFFICIENT = re.compile(r"Insufficient ([A-Za-z][\w./-]*\w)")
_PLACED = re.compile(r"affinity|selector|untolerated taint|topology spread")


def image(role: str, container: str) -> str:
    """What names the image of a container of ``role``, and what to do where it cannot be pulled."""
    named = image_source(role, container) or f"spec.{role}.template"
    engines = role in ("prefill", "decode")
    secret = f", or name a Secret to pull it with in spec.{role}.template.spec.imagePullSecrets" if engines else ""
    return f"the image is named by {named}; name one that the registry has{secret}"


def room(role: str, said: str, spec: Mapping[str, Any], *, surge: bool, otherwise: str = "add nodes") -> str:
    """The way out of the room that a pod of ``role`` does not get, by the scheduler's or a quota's sentence.

    ``spec`` is the object's as it is stored: a field is named where a lower value of it is one that it may have; every
    one where ``spec`` is empty. ``surge``: whether pods of another revision stay meanwhile. ``otherwise``: what helps
    that is not of the object.
    """
    fields = ["spec.cache.l2.size"] if role == "store" else _fields(role, said, spec)
    if surge and role != "store":
        fields.append("spec.rollout.maxSurge, for what comes up beside what serves")
    if fields:
        return f"asked for by {', '.join(fields)}: lower it, or {otherwise}"
    engines = [f"spec.{of}.resources" for of in ("prefill", "decode") if of != role and of in spec]
    beside = f", or lower what engines ask for beside it ({', '.join(engines)})" if engines else ""
    return f"it asks for no more than it must have: {otherwise}{beside}"


def _fields(role: str, said: str, spec: Mapping[str, Any]) -> list[str]:
    fields, short, of_role = [], lacking(said), template.section(spec, role)
    devices = [name for name in short if "gpu" in name]
    if role != "router":
        if not spec or len(devices) < len(short) or not short or _names(of_role, devices):
            fields.append(f"spec.{role}.resources")
        if (not short or devices) and (not spec or spread(of_role)):
            fields.append(f"spec.{role}.parallelism")
        if "memory" in short:
            fields.append("spec.cache.l1 (where it is set)")
        if any(name.startswith("rdma/") for name in short):
            fields.append("spec.transfer.rdma")
        if placed(said):
            fields.append(f"spec.{role}.template and spec.scheduling")
    if not spec or several(role, of_role):
        fields.append(f"spec.{role}.replicas")
    return fields


def spread(of_role: Mapping[str, Any]) -> bool:
    """Whether one engine of a role, as it is stored, takes more than one device."""
    sizes = template.section(of_role, "parallelism")
    return any(sizes.get(name, 1) != 1 for name in ("tensor", "pipeline", "data"))


def several(role: str, of_role: Mapping[str, Any]) -> bool:
    """Whether a role, as it is stored, asks for more pods than the one without which nothing serves."""
    return "autoscaling" in of_role or of_role.get("replicas", 2 if role == "router" else 1) not in (0, 1)


def _names(of_role: Mapping[str, Any], devices: list[str]) -> bool:
    amounts = template.section(of_role, "resources")
    return any(name in template.section(amounts, kind) for name in devices for kind in ("requests", "limits"))


def lacking(said: str) -> list[str]:
    """What the scheduler's sentence says nodes have too little of, such as memory, each once."""
    return list(dict.fromkeys(_INSUFFICIENT.findall(said)))


def placed(said: str) -> bool:
    """Whether the scheduler's sentence says that nodes are not those where the pod may be."""
    return bool(_PLACED.search(said))
