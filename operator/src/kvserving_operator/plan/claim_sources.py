"""Which field of an object decides on a claim that its pods mount."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import template
from .names import Names, base_name


def claim_source(claim: str, name: str, spec: Mapping[str, Any]) -> str:
    """Return the field of the object called ``name`` that says where ``claim`` gets its volume, or that names it.

    ``spec`` is as stored. Empty for a claim that neither the object nor the operator names, as that of a template.
    """
    names, model = Names(base_name(name), "") if name else None, template.section(spec, "model")
    if names is not None and claim == names.l2_claim:
        return "spec.cache.l2.storageClass"
    if names is not None and claim == names.model_claim:
        return "spec.model.cache.storageClass"
    if str(model.get("uri") or "").removeprefix("pvc://").partition("/")[0] == claim:
        return "spec.model.uri"
    return "spec.model.cache.pvc" if template.section(model, "cache").get("pvc") == claim else ""
