"""Whether a live child still is what the operator applied. Pure.

A child is as applied when it carries the digest of the wanted manifest and the operator's
entries in ``managedFields`` name exactly the fields of that manifest. The apiserver takes a
field out of an entry when someone else sets another value, so the entries tell of every
foreign change of our fields and of none of anybody else's. Values are never compared: the
server's defaults and its notation of quantities do not matter, and nothing has to be
remembered over a restart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from .config import FIELD_MANAGER

DIGEST = "kvserving.dev/applied"
"""Annotation of every child: digest of the manifest that it was applied from."""

Fields = Mapping[str, Any]
"""A ``fieldsV1`` tree."""

# The server keeps these out of managedFields; the owner is compared by itself, and its UID would make every
# object's tree another one.
_UNMANAGED = ("name", "namespace", "uid", "ownerReferences")
_KEY_DEFAULTS = {"protocol": "TCP"}


def digest(manifest: Mapping[str, Any]) -> str:
    """Return a digest of ``manifest``, equal for equal content."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def own_fields(managed_fields: Iterable[Mapping[str, Any]], manager: str = FIELD_MANAGER) -> Fields:
    """Return the fields that the operator manages as ``manager``, by ``metadata.managedFields``.

    Entries of subresources do not count. What a mutating webhook changes in our own request
    is recorded as an update by our manager, and counts. Equal trees are one object, so that a
    thousand children of a kind need the memory of one. Owner references are left out.
    """
    entries = [
        entry.get("fieldsV1") or {}
        for entry in managed_fields
        if entry.get("manager") == manager and not entry.get("subresource")
    ]
    merged: dict[str, Any] = dict(entries[0]) if len(entries) == 1 else {}
    for entry in entries if not merged else ():
        _merge(merged, entry)
    metadata = {key: value for key, value in merged.pop("f:metadata", {}).items() if key != "f:ownerReferences"}
    if metadata:
        # An empty tree would read as all of it.
        merged["f:metadata"] = metadata
    return _shared(json.dumps(merged, sort_keys=True, separators=(",", ":")))


@lru_cache(maxsize=2048)
def _shared(text: str) -> Fields:
    parsed: Fields = json.loads(text)
    return parsed


def matches(manifest: Mapping[str, Any], fields: Fields) -> bool:
    """Whether ``fields`` are exactly the fields of ``manifest``."""
    stripped = _without_unmanaged(manifest)
    return _map_matches(stripped, fields)


def owns(fields: Fields, *path: str) -> bool:
    """Whether the field at ``path`` is among ``fields``."""
    node: Any = fields
    for part in path:
        node = node.get(f"f:{part}") if isinstance(node, Mapping) else None
        if node is None:
            return False
    return True


def gained(before: Fields, after: Fields, but: Fields) -> list[str]:
    """Return the paths that ``after`` has and neither ``before`` nor ``but`` has, each by its highest part, in order.

    Members of lists are named by their keys. Values appear nowhere.
    """
    return sorted(_gained(before, after, but, ""))


def _gained(before: Any, after: Fields, but: Any, path: str) -> Iterator[str]:
    had, left_out = (fields if isinstance(fields, Mapping) else {} for fields in (before, but))
    for key, member in after.items():
        if key == ".":
            continue
        if key.startswith("f:"):
            here = f"{path}.{key[2:]}".lstrip(".")
        else:
            names = ",".join(str(value) for value in _identity(key).values()) if key.startswith("k:") else ""
            here = f"{path}[{names}]"
        if key not in had and key not in left_out:
            yield here
        elif isinstance(member, Mapping):
            yield from _gained(had.get(key), member, left_out.get(key), here)


def _without_unmanaged(manifest: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in manifest.get("metadata", {}).items() if key not in _UNMANAGED}
    parts = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind")}
    return {**parts, "metadata": metadata}


def _matches(value: Any, fields: Any) -> bool:
    if not isinstance(fields, Mapping):
        return False
    keys = [key for key in fields if key != "."]
    if not keys:
        # An atomic value, or one that is empty: all of it is ours.
        return True
    if isinstance(value, Mapping):
        return _map_matches(value, fields)
    if isinstance(value, list):
        return _list_matches(value, fields, keys)
    return False


def _map_matches(value: Mapping[str, Any], fields: Fields) -> bool:
    wanted = {f"f:{key}": member for key, member in value.items() if member is not None}
    if set(wanted) != {key for key in fields if key != "."}:
        return False
    return all(_matches(member, fields[key]) for key, member in wanted.items())


def _list_matches(items: list[Any], fields: Fields, keys: list[str]) -> bool:
    if len(items) != len(keys):
        return False
    if all(key.startswith("v:") for key in keys):
        return {json.dumps(item, sort_keys=True) for item in items} == {
            json.dumps(json.loads(key[2:]), sort_keys=True) for key in keys
        }
    found: dict[tuple[str, ...], dict[tuple[Any, ...], Any]] = {}
    for key in keys:
        if not key.startswith("k:"):
            return False
        identity = _identity(key)
        parts = tuple(identity)
        if parts not in found:
            found[parts] = {_values(item, parts): item for item in items if isinstance(item, Mapping)}
        item = found[parts].pop(tuple(identity.values()), None)
        if item is None:
            return False
        # Defaulted parts of the key are the server's, and appear in the entry or not depending on its version.
        added = {part: value for part, value in identity.items() if part not in item and f"f:{part}" in fields[key]}
        if not _matches({**item, **added} if added else item, fields[key]):
            return False
    return True


@lru_cache(maxsize=4096)
def _identity(key: str) -> Mapping[str, Any]:
    parsed: Mapping[str, Any] = json.loads(key[2:])
    return parsed


def _values(item: Mapping[str, Any], parts: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(item.get(part, _KEY_DEFAULTS.get(part)) for part in parts)


def _merge(into: dict[str, Any], fields: Mapping[str, Any]) -> None:
    for key, value in fields.items():
        if isinstance(value, Mapping):
            _merge(into.setdefault(key, {}), value)
