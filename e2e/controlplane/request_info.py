"""What a request to an apiserver is about, told from its method, path, query and body as the apiserver tells it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_BY_METHOD = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True)
class RequestInfo:
    """One request. ``resource`` is the plural name; ``""`` for paths that are no resource (discovery, health).

    ``verb`` is Kubernetes': get, list, watch, create, update, patch, delete, deletecollection.
    """

    verb: str
    path: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    dry_run: bool = False
    user_agent: str = ""

    @property
    def is_write(self) -> bool:
        """Whether it changes stored state: reviews and token requests are creates that store nothing."""
        stores = not self.group.startswith(("authorization.k8s.io", "authentication.k8s.io"))
        return (
            self.verb in _WRITES and bool(self.resource) and stores and not self.dry_run and self.subresource != "token"
        )

    @property
    def full_resource(self) -> str:
        """``deployments`` or ``deployments/status``."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def parse(method: str, path: str, query: Mapping[str, str], body: Any = None, user_agent: str = "") -> RequestInfo:
    """Return what the request is about. ``body`` is the decoded object, used for the name of a create."""
    parts = [part for part in path.split("/") if part]
    group = version = resource = subresource = namespace = name = ""
    if parts[:1] == ["api"] and len(parts) > 2:
        version, rest = parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        rest = []
    if rest[:1] == ["namespaces"] and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in ("status", "finalize"):
            rest = rest[2:]
    if rest:
        resource = rest[0]
        name = rest[1] if len(rest) > 1 else ""
        subresource = "/".join(rest[2:])
    if method in ("GET", "HEAD"):
        collection = "watch" if query.get("watch") in ("true", "1") else "list"
        verb = collection if resource and not name else "get"
    else:
        verb = _BY_METHOD.get(method, method.lower())
        if verb == "delete" and resource and not name:
            verb = "deletecollection"
    metadata = body.get("metadata") if isinstance(body, dict) else None
    if verb == "create" and not name and isinstance(metadata, dict):
        name = str(metadata.get("name") or metadata.get("generateName") or "")
    return RequestInfo(
        verb, path, group, version, resource, subresource, namespace, name, bool(query.get("dryRun")), user_agent
    )


def decoded(data: bytes) -> Any:
    """Return the object in a request's body: JSON or YAML; ``None`` for an empty or binary one."""
    if not data:
        return None
    try:
        return json.loads(data)
    except ValueError:
        pass
    try:
        return yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError):
        return None
