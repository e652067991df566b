"""Looks at a cluster as a whole: version, kinds, operators, nodes and rights."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from .. import times
from ..control.failures import ApiFailure
from ..control.observe import serving_of
from ..control.permissions import PODS, SECRETS, SERVING, TABLE, Resource
from ..control.preflight import CrdMissing, installed
from ..control.reconcile import read
from ..plan.types import CLUSTER, Observed
from .checks.operators import SELECTOR, served
from .connection import Connection, refused
from .facts import Body, ClusterFacts, Permission, Unread, unique
from .gather_object import CLASSES, DEPLOYMENTS, EVENTS, NODES, published_schema, unread

_DAEMONS = Resource("apps", "v1", "DaemonSet", "daemonsets", ("list",), "which network plugin there is")
_SLICES = Resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", ("list",), "whether the DNS answers")
_DNS = "kubernetes.io/service-name=kube-dns"
_REVIEWS = "/apis/authorization.k8s.io/v1/{}"
_AT_ONCE = 16

# What a person needs for these commands: verb, resource, subresource, and the command.
_WANTED: tuple[tuple[str, Resource, str, str], ...] = (
    ("get", SERVING, "", "status, verify, doctor"),
    ("list", SERVING, "", "status"),
    ("list", PODS, "", "status, verify, doctor"),
    ("get", PODS, "proxy", "counters in doctor"),
    ("create", PODS, "proxy", "verify"),
    ("get", SECRETS, "", "verify, and keys in doctor"),
    ("list", EVENTS, "", "events in doctor"),
    ("list", NODES, "", "nodes in doctor"),
)


async def of_cluster(connection: Connection) -> ClusterFacts:
    """What one cluster has. Raises ``EnvironmentFault`` where the apiserver does not answer."""
    missed: list[Unread] = []
    try:
        version = await connection.kube.read("/version") or {}
    except ApiFailure as failure:
        if failure.status in (0, 401):
            raise refused(connection.server, failure) from None
        missed.append(unread("the version", failure, "grant get on /version"))
        version = {}
    kinds: frozenset[tuple[str, str]] | None = None
    try:
        found = await installed(connection.kube)
        kinds = found.present | {(SERVING.api_version, SERVING.kind)}
    except CrdMissing:
        kinds = frozenset()
    except ApiFailure as failure:
        missed.append(unread("the installed kinds", failure, "grant get on /api and /apis"))
    operators, nodes, classes, objects, daemons, dns, pods = await asyncio.gather(
        _listed(connection, DEPLOYMENTS, missed, selector=SELECTOR),
        _listed(connection, NODES, missed),
        _listed(connection, CLASSES, missed),
        _listed(connection, SERVING, [] if kinds == frozenset() else missed),
        _listed(connection, _DAEMONS, missed),
        _listed(connection, _SLICES, missed, namespace="kube-system", selector=_DNS),
        _listed(connection, PODS, missed, selector=SELECTOR),
    )
    return ClusterFacts(
        server=connection.server,
        version=str(version.get("gitVersion") or ""),
        kinds=kinds,
        schema=None if kinds == frozenset() else await published_schema(connection, missed),
        nodes=nodes,
        operators=operators,
        storage_classes=classes,
        permissions=(*await _yours(connection, missed), *await _operators(connection, operators or (), missed)),
        unread=unique(missed),
        needs=needs(objects or ()),
        daemons=daemons,
        dns=dns,
        pods=pods,
        clocks={n["metadata"]["name"]: ahead for n in nodes or () if (ahead := clock(n)) is not None},
    )


def needs(objects: Sequence[Body]) -> dict[str, tuple[str, ...]]:
    """The objects, as namespace/name, that ask for each kind of child; those that cannot be planned ask for none."""
    found: dict[str, list[str]] = {}
    for body in objects:
        made = read(serving_of(body), CLUSTER, Observed()).plan
        for kind in sorted({str(manifest["kind"]) for manifest in (made.objects if made is not None else ())}):
            found.setdefault(kind, []).append(f"{body['metadata']['namespace']}/{body['metadata']['name']}")
    return {kind: tuple(names) for kind, names in found.items()}


def clock(node: Body) -> float | None:
    """By how many seconds the clock of a node is ahead of the apiserver's; ``None`` where that is not told.

    The kubelet writes its own time into the condition Ready, and the apiserver beside it when that was written, both
    in whole seconds.
    """
    conditions = (node.get("status") or {}).get("conditions") or ()
    said = next((c.get("lastHeartbeatTime") for c in conditions if c.get("type") == "Ready"), None)
    entries = node["metadata"].get("managedFields") or ()
    written = next((entry.get("time") for entry in entries if _writes_heartbeat(entry)), None)
    return (times.read(said) - times.read(written)).total_seconds() if said and written else None


def _writes_heartbeat(entry: Mapping[str, Any]) -> bool:
    owned = ((entry.get("fieldsV1") or {}).get("f:status") or {}).get("f:conditions") or {}
    return "f:lastHeartbeatTime" in owned.get('k:{"type":"Ready"}', {})


async def _listed(
    connection: Connection,
    resource: Resource,
    missed: list[Unread],
    *,
    namespace: str | None = None,
    selector: str = "",
) -> tuple[Body, ...] | None:
    found: list[Body] = []
    try:
        async for page in connection.kube.list(resource, namespace, selector=selector):
            found += page.items
    except ApiFailure as failure:
        missed.append(unread(resource.full_name, failure, f"grant list on {resource.full_name}"))
        return None
    return tuple(found)


async def _yours(connection: Connection, missed: list[Unread]) -> list[Permission]:
    """What you may do of what these commands need."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def ask(verb: str, resource: Resource, subresource: str, needed_for: str) -> Permission:
        namespace = "" if resource is NODES else connection.namespace
        async with limit:
            allowed = await _allowed(connection, verb, resource, subresource, namespace, None)
        where = f" in {namespace}" if namespace else ""
        name = f"{resource.full_name}{f'/{subresource}' if subresource else ''}"
        return Permission("you", f"{verb} {name}{where}", allowed, needed_for)

    try:
        return list(await asyncio.gather(*(ask(*wanted) for wanted in _WANTED)))
    except ApiFailure as failure:
        fix = "grant create on selfsubjectaccessreviews; without credentials, log in"
        missed.append(unread("your rights", failure, fix))
        return []


async def _operators(connection: Connection, operators: Sequence[Body], missed: list[Unread]) -> list[Permission]:
    """What each operator's service account may do of what it needs; asked with the right to review others."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def ask(user: str, verb: str, resource: Resource, namespace: str) -> Permission:
        subresource = resource.plural.partition("/")[2]
        async with limit:
            allowed = await _allowed(connection, verb, resource, subresource, namespace, user)
        where = f" in {namespace}" if namespace else ""
        return Permission(user, f"{verb} {resource.full_name}{where}", allowed, resource.why)

    questions = []
    for body in operators:
        own = str(body["metadata"]["namespace"])
        pod = body["spec"]["template"]["spec"]
        user = f"system:serviceaccount:{own}:{pod.get('serviceAccountName') or 'default'}"
        for resource in TABLE:
            places = (own,) if resource.scope == "own" else served(body) or ("",)
            questions += [ask(user, verb, resource, place) for place in places for verb in resource.verbs]
    try:
        return list(await asyncio.gather(*questions))
    except ApiFailure as failure:
        missed.append(unread("the operator's rights", failure, "grant create on subjectaccessreviews"))
        return []


async def _allowed(
    connection: Connection, verb: str, resource: Resource, subresource: str, namespace: str, user: str | None
) -> bool:
    attributes = {
        "group": resource.group, "resource": resource.plural.partition("/")[0], "subresource": subresource,
        "verb": verb, "namespace": namespace,
    }  # fmt: skip
    kind = "SelfSubjectAccessReview" if user is None else "SubjectAccessReview"
    spec: dict[str, Any] = {"resourceAttributes": attributes}
    if user is not None:
        spec |= {"user": user, "groups": ["system:serviceaccounts", "system:authenticated"]}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    answer = await connection.kube.post(_REVIEWS.format(f"{kind.lower()}s"), body)
    return bool((answer.get("status") or {}).get("allowed"))
