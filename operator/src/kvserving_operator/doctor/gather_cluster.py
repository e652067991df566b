"""Looks at a cluster as a whole: version, kinds, operators, nodes and rights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ..control import permissions
from ..control.failures import ApiFailure
from ..control.permissions import PODS, SECRETS, SERVING, TABLE, Resource
from ..control.preflight import CrdMissing, installed
from .checks.cluster import served
from .connection import Connection, refused
from .facts import Body, ClusterFacts, Permission, Unread, unique
from .gather_object import EVENTS, NODES, published_schema, unread

_DEPLOYMENTS = next(resource for resource in permissions.CHILDREN if resource.kind == "Deployment")
_CLASSES = Resource("storage.k8s.io", "v1", "StorageClass", "storageclasses", ("list",), "where claims come from")
_OPERATOR = f"app.kubernetes.io/name={permissions.NAME}"
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
    kinds: frozenset[tuple[str, str]] = frozenset()
    try:
        found = await installed(connection.kube)
        kinds = found.present | {(SERVING.api_version, SERVING.kind)}
    except CrdMissing:
        pass
    except ApiFailure as failure:
        missed.append(unread("the installed kinds", failure, "grant get on /api and /apis"))
    operators = await _listed(connection, _DEPLOYMENTS, missed, selector=_OPERATOR)
    return ClusterFacts(
        server=connection.server,
        version=str(version.get("gitVersion") or ""),
        kinds=kinds,
        schema=await published_schema(connection, missed) if kinds else None,
        nodes=await _listed(connection, NODES, missed),
        operators=operators,
        storage_classes=await _listed(connection, _CLASSES, missed),
        permissions=(*await _yours(connection), *await _operators(connection, operators or (), missed)),
        unread=unique(missed),
    )


async def _listed(
    connection: Connection, resource: Resource, missed: list[Unread], *, selector: str = ""
) -> tuple[Body, ...] | None:
    found: list[Body] = []
    try:
        async for page in connection.kube.list(resource, None, selector=selector):
            found += page.items
    except ApiFailure as failure:
        missed.append(unread(resource.full_name, failure, f"grant list on {resource.full_name}"))
        return None
    return tuple(found)


async def _yours(connection: Connection) -> list[Permission]:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def ask(verb: str, resource: Resource, subresource: str, needed_for: str) -> Permission:
        namespace = "" if resource is NODES else connection.namespace
        async with limit:
            allowed = await _allowed(connection, verb, resource, subresource, namespace, None)
        where = f" in {namespace}" if namespace else ""
        name = f"{resource.full_name}{f'/{subresource}' if subresource else ''}"
        return Permission("you", f"{verb} {name}{where}", allowed, needed_for)

    return list(await asyncio.gather(*(ask(*wanted) for wanted in _WANTED)))


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
