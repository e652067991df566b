"""Merging a user's pod template over the rendered one.

As a strategic merge does: maps merge key by key, containers, volumes, environment, mounts
and ports by their key, other lists are replaced (tolerations appended). A null counts as absent.
Of fields of which a pod may have one only, such as the kinds of a probe, the user's replaces ours.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "claims": "name",
}
HANDLERS = frozenset({"exec", "httpGet", "tcpSocket", "grpc", "sleep"})
ENV_SOURCES = frozenset({"secretKeyRef", "configMapKeyRef", "fieldRef", "resourceFieldRef"})
_ALTERNATIVES = (
    HANDLERS,
    ENV_SOURCES,
    frozenset({"value", "valueFrom"}),
    frozenset({"resourceClaimName", "resourceClaimTemplateName"}),
)
_APPENDED = frozenset({"tolerations", "hostAliases", "topologySpreadConstraints"})


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` merged into ``base``; neither is changed."""
    given = {key for key, value in over.items() if value is not None}
    replaced = {key for group in _ALTERNATIVES if group & given for key in group - given}
    merged = {key: value for key, value in base.items() if key not in replaced}
    for key, value in over.items():
        if value is not None:
            merged[key] = _merge_value(key, merged.get(key), value)
    return merged


def mounts_path(template: Mapping[str, Any] | None, path: str) -> Mapping[str, Any] | None:
    """The volume that a template mounts at ``path`` in the engine; None where it mounts none there.

    The volume is empty where the template mounts a name it does not declare.
    """
    spec = section(template or {}, "spec")
    for mount in listed(engine_container(spec), "volumeMounts"):
        if mounted_at(mount) == path:
            named = (volume for volume in listed(spec, "volumes") if volume.get("name") == mount.get("name"))
            return next(named, {})
    return None


def holds_path(template: Mapping[str, Any] | None, path: str) -> bool:
    """Whether a template mounts a volume in the engine at ``path`` or a folder above it."""
    mounts = listed(engine_container(section(template or {}, "spec")), "volumeMounts")
    return any(is_within(path, mounted_at(mount)) for mount in mounts)


def mounted_at(mount: Mapping[str, Any]) -> str:
    """Where a mount of a user's template is, in the one spelling that containers give it."""
    return posixpath.normpath("/" + str(mount.get("mountPath") or "").lstrip("/"))


def is_within(path: str, folder: str) -> bool:
    """Whether ``path`` is ``folder`` or below it; both are spelled as ``mounted_at`` does."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def engine_container(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container named engine in a template's pod spec, or an empty one."""
    return next((c for c in listed(spec, "containers") if c.get("name") == "engine"), {})


def section(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A map in a user's template; empty where it is absent or something else."""
    value = of.get(key)
    return value if isinstance(value, Mapping) else {}


def listed(of: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The maps of a list in a user's template; empty where it is absent or something else."""
    value = of.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _merge_value(key: str, base: Any, over: Any) -> Any:
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        return merge(base, over)
    if isinstance(base, list) and isinstance(over, list):
        if key in _APPENDED:
            return [*base, *over]
        if key in _KEYS:
            return _merge_list(base, over, _KEYS[key])
    return over


def _merge_list(base: list[Any], over: list[Any], by: str) -> list[Any]:
    merged = list(base)
    places = {item.get(by): index for index, item in enumerate(base) if isinstance(item, Mapping)}
    for item in over:
        place = places.get(item.get(by)) if isinstance(item, Mapping) else None
        if place is None:
            merged.append(item)
        else:
            merged[place] = merge(merged[place], item)
    return merged
