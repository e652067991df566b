"""Security contexts: no pod of a service runs as root, no container gains rights."""

from __future__ import annotations

from typing import Any

USER_ID = 65532


def pod_context(user: int, *, change_policy: str | None = None) -> dict[str, Any]:
    """A pod's context for the numeric ``user``; ``change_policy`` is its ``fsGroupChangePolicy``, where it has one."""
    context: dict[str, Any] = {"runAsNonRoot": True, "runAsUser": user, "runAsGroup": user, "fsGroup": user}
    if change_policy is not None:
        context["fsGroupChangePolicy"] = change_policy
    return {**context, "seccompProfile": {"type": "RuntimeDefault"}}


def sealed_container() -> dict[str, Any]:
    """Context of a container that needs no capability and writes to its volumes alone."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
