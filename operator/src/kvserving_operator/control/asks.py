"""Which fields of an object ask for what its pods cannot get: an image or room. Pure."""

from __future__ import annotations

import re

from ..plan.image_sources import image_source

_INSUFFICIENT = re.compile(r"Insufficient ([\w./-]*[\w])")


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
    lacking = set(_INSUFFICIENT.findall(said))
    if role != "router":
        if not lacking or any("gpu" in name for name in lacking):
            fields.append(f"spec.{role}.parallelism")
        if "memory" in lacking:
            fields.append("spec.cache.l1 (where it is set)")
        if any(name.startswith("rdma/") for name in lacking):
            fields.append("spec.transfer.rdma")
        if any(word in said for word in ("affinity", "selector", "taint", "topology")):
            fields.append(f"spec.{role}.template and spec.scheduling")
    fields.append(f"spec.{role}.replicas")
    if surge:
        fields.append("spec.rollout.maxSurge, for what comes up beside what serves")
    return f"asked for by {', '.join(fields)}"
