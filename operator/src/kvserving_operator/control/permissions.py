"""Every resource that the operator touches and every verb that it needs, declared once.

The RBAC manifests are made from this table (``--write``, ``--check``), and the preflight asks
the apiserver for each verb of it before anything else is done.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import yaml

from .. import generated, plain_yaml
from ..api import serving_role
from ..api.schema import PLURAL
from ..api.v1alpha1 import GROUP, KIND, VERSION

FILE_NAME = "rbac.yaml"
NAME = "kvserving-operator"

_CHILD = ("create", "delete", "get", "list", "patch", "watch")
Scope = Literal["served", "own"]


@dataclass(frozen=True)
class Resource:
    """One kind as the API names it, with the verbs that the operator needs on it.

    ``child``: the operator creates it for an object. ``watched``: events of it are listened to.
    ``optional``: clusters may lack it. ``scope``: in the namespaces that are served, or only in
    the operator's own.
    """

    group: str
    version: str
    kind: str
    plural: str
    verbs: tuple[str, ...]
    why: str
    child: bool = False
    watched: bool = False
    optional: bool = False
    scope: Scope = "served"

    @property
    def api_version(self) -> str:
        """``group/version``, or the version alone in the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """Name as ``kubectl`` takes it, such as ``deployments.apps``."""
        plural, slash, subresource = self.plural.partition("/")
        return (f"{plural}.{self.group}" if self.group else plural) + slash + subresource


def _child(group: str, version: str, kind: str, plural: str, why: str, *, optional: bool = False) -> Resource:
    return Resource(group, version, kind, plural, _CHILD, why, child=True, watched=True, optional=optional)


SERVING = Resource(GROUP, VERSION, KIND, PLURAL, ("get", "list", "watch"), "the objects themselves", watched=True)
PODS = Resource(
    "", "v1", "Pod", "pods", ("delete", "get", "list", "watch"),
    "readiness, addresses, restart of engines that hang; routers too", watched=True,
)  # fmt: skip
SECRETS = Resource("", "v1", "Secret", "secrets", ("create", "get"), "keys are made once and read by name", child=True)
EVENTS = Resource("", "v1", "Event", "events", ("create",), "transitions of conditions")
LEASES = Resource(
    "coordination.k8s.io", "v1", "Lease", "leases", ("create", "get", "update"), "election of the writer", scope="own"
)

ROLE = _child(GROUP, VERSION, serving_role.KIND, serving_role.PLURAL, "the number of engines that scalers ask for")

GROUPS = _child(
    "leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets", "engines on several nodes", optional=True
)

CHILDREN: tuple[Resource, ...] = (
    _child("", "v1", "ConfigMap", "configmaps", "the router's launcher, store settings"),
    _child("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", "model and filesystem caches"),
    _child("", "v1", "Service", "services", "router and store"),
    _child("", "v1", "ServiceAccount", "serviceaccounts", "the router's identity"),
    _child("apps", "v1", "Deployment", "deployments", "engines and router"),
    _child("apps", "v1", "StatefulSet", "statefulsets", "the store"),
    _child("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "scaling of a role"),
    _child("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", "who may reach engines"),
    _child("rbac.authorization.k8s.io", "v1", "Role", "roles", "what the router may read"),
    _child("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", "what the router may read"),
    _child("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors", "monitoring", optional=True),
    _child("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects", "scaling by KEDA", optional=True),
    _child("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes", "a route to the router", optional=True),
    GROUPS,
    ROLE,
)
"""Kinds of children that are watched."""

TABLE: tuple[Resource, ...] = (
    SERVING,
    Resource(GROUP, VERSION, KIND, f"{PLURAL}/status", ("get", "patch"), "status is all that is written there"),
    Resource(GROUP, VERSION, KIND, f"{PLURAL}/finalizers", ("update",), "owner references that block deletion"),
    PODS,
    SECRETS,
    EVENTS,
    *CHILDREN,
    replace(ROLE, plural=f"{ROLE.plural}/status", verbs=("get", "patch"), why="what /scale shows of a role"),
    LEASES,
)

_BY_KIND = {(resource.api_version, resource.kind): resource for resource in (*CHILDREN, SERVING, PODS, SECRETS, EVENTS)}


def resource_of(api_version: str, kind: str) -> Resource:
    """Return the resource of a manifest. Raises ``LookupError`` for a kind that is not in the table."""
    found = _BY_KIND.get((api_version, kind))
    if found is None:
        raise LookupError(f"{kind} of {api_version} is not in the table of permissions")
    return found


def rules(scope: Scope | None = None) -> list[dict[str, Any]]:
    """Return policy rules of one scope (of both without one), a rule per API group and set of verbs."""
    merged: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for resource in TABLE:
        if scope in (None, resource.scope):
            merged.setdefault((resource.group, resource.verbs), []).append(resource.plural)
    return [
        {"apiGroups": [group], "resources": sorted(plurals), "verbs": list(verbs)}
        for (group, verbs), plurals in sorted(merged.items())
    ]


def manifests(namespace: str = "kvserving-system", served: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return RBAC objects for an operator in ``namespace``.

    Without ``served`` it may act in every namespace; with it, in those alone.
    """
    made = [*_grant("Role", f"{NAME}-election", namespace, namespace, rules("own"))]
    if not served:
        made += _grant("ClusterRole", NAME, None, namespace, rules("served"))
    for name in served:
        made += _grant("Role", NAME, name, namespace, rules("served"))
    return made


def _grant(
    kind: str, name: str, namespace: str | None, account_namespace: str, granted: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    group = "rbac.authorization.k8s.io"
    metadata: dict[str, Any] = {"name": name, "labels": {"app.kubernetes.io/name": NAME}}
    if namespace is not None:
        metadata["namespace"] = namespace
    return [
        {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata, "rules": list(granted)},
        {
            "apiVersion": f"{group}/v1",
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": kind, "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": account_namespace}],
        },
    ]


def render(namespace: str = "kvserving-system", served: Sequence[str] = ()) -> str:
    """Return the text of the RBAC file."""
    header = "# Generated by kvserving_operator.control.permissions; do not edit.\n"
    return header + yaml.dump_all(manifests(namespace, served), Dumper=plain_yaml.Dumper, sort_keys=False, width=1000)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the RBAC file in the named folder; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kvserving_operator.control.permissions", description="RBAC.")
    generated.actions(parser)
    parser.add_argument("--namespace", default="kvserving-system", help="namespace of the operator")
    parser.add_argument("--served", action="append", default=[], metavar="NAMESPACE", help="serve only NAMESPACE")
    options = parser.parse_args(arguments)
    text = render(options.namespace, options.served)
    return generated.write_or_check(FILE_NAME, text, options, "the table of permissions")


if __name__ == "__main__":
    sys.exit(main())
