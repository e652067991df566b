"""The frame that every child object has."""

from __future__ import annotations

from typing import Any

from . import labels
from .context import Context


def literal(text: str) -> str:
    """``text`` as an argument that reaches the process unchanged: Kubernetes expands ``$(NAME)`` and ``$$``."""
    return text.replace("$", "$$")


def manifest(
    ctx: Context,
    api_version: str,
    kind: str,
    name: str,
    *,
    role: str | None = None,
    revision: str | None = None,
    **parts: Any,
) -> dict[str, Any]:
    """A child object with the labels of its object, and of its role and revision where it has them."""
    marks = labels.child_labels(ctx.name, role, revision) if role else labels.object_labels(ctx.name)
    if role is None and revision is not None:
        marks[labels.REVISION] = revision
    metadata = {"name": name, "namespace": ctx.namespace, "labels": marks}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **parts}


def claim(ctx: Context, name: str, size: str, storage_class: str | None) -> dict[str, Any]:
    """A volume claim that pods on several nodes share."""
    spec: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": size}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    return manifest(ctx, "v1", "PersistentVolumeClaim", name, spec=spec)


def secret_env(name: str, secret: str, key: str, *, optional: bool = False) -> dict[str, Any]:
    """An environment variable whose value stays in a Secret."""
    reference: dict[str, Any] = {"name": secret, "key": key}
    if optional:
        reference["optional"] = True
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}
