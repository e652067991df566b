"""Which fields of an object ask for what its pods cannot get: an image or room. Pure."""

from __future__ import annotations

import re

from ..plan.image_sources import image_source

_INSUFFICIENT = re.compile(r"Insufficient ([A-Za-z][\w./-]*\w)")
_PLACED = re.compile(r"affinity|selector|untolerated taint|topology spread")


def image(role: str, container: str) -> str:
    """What names the image of a container of ``role``, and what to do where it cannot be pulled."""
    named = image_source(role, container) or f"spec.{role}.template"
    engines = role in ("prefill", "decode")
    secret = f", or name a Secret to pull it with in spec.{role}.template.spec.imagePullSecrets" if engines else ""
    return f"the image is named by {named}; name one that the registry has{secret}"


def room(role: str, said: str, *, surge: bool) -> str:
    """Which fields ask for the room that a pod of ``role`` does not get, by the scheduler's or a quota's sentence.

    ``surge``: whether pods of another revision stay meanwhile.
    """
    if role == "store":
        return "asked for by spec.cache.l2.size"
    fields = [f"spec.{role}.resources"] if role != "router" else []
    short = lacking(said)
    if role != "router":
        if not short or any("gpu" in name for name in short):
            fields.append(f"spec.{role}.parallelism")
        if "memory" in short:
            fields.append("spec.cache.l1 (where it is set)")
        if any(name.startswith("rdma/") for name in short):
            fields.append("spec.transfer.rdma")
        if placed(said):
            fields.append(f"spec.{role}.template and spec.scheduling")
    fields.append(f"spec.{role}.replicas")
    if surge:
        fields.append("spec.rollout.maxSurge, for what comes up beside what serves")
    return f"asked for by {', '.join(fields)}"


def lacking(said: str) -> list[str]:
    """What the scheduler's sentence says nodes have too little of, such as memory, each once."""
    return list(dict.fromkeys(_INSUFFICIENT.findall(said)))


def placed(said: str) -> bool:
    """Whether the scheduler's sentence says that nodes are not those where the pod may be."""
    return bool(_PLACED.search(said))
