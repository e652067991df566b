"""Looks at one object: in a file, or in a cluster with all that belongs to it. Values of Secrets are dropped."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from .. import times
from ..api import load
from ..api.faults import InvalidSpec
from ..api.v1alpha1 import GROUP, KIND, VERSION, KVServing, KVServingSpec
from ..control.failures import ApiFailure
from ..control.observe import Child, View, child_of, serving_of
from ..control.permissions import CHILDREN, LEASES, NAME, PODS, SECRETS, Resource
from ..control.pods import pod_state
from ..control.reconcile import observed_of, read
from ..control.status import public
from ..local import model_config, preflight, room
from ..local.errors import ManifestFault
from ..local.pods import of_objects
from ..local.state import root
from ..model_facts import ModelFacts
from ..plan import labels
from ..plan.planning import check, plan
from ..plan.secret_refs import needed
from ..plan.sources import source
from ..plan.template import holds_path
from ..plan.types import CLUSTER, Observed, Site
from .checks.operators import SELECTOR
from .connection import Connection, pod_path, refused
from .facts import Body, Engine, Keys, Live, ObjectFacts, Operators, Series, Unread, role_of, unique
from .named import read_named

NODES = Resource("", "v1", "Node", "nodes", ("list",), "what pods can be placed on")
EVENTS = Resource("", "v1", "Event", "events", ("list",), "what the cluster says of pods")
QUOTAS = Resource("", "v1", "ResourceQuota", "resourcequotas", ("list",), "what a namespace may use")
RANGES = Resource("", "v1", "LimitRange", "limitranges", ("list",), "bounds and defaults of containers")
CLASSES = Resource("storage.k8s.io", "v1", "StorageClass", "storageclasses", ("list",), "where claims come from")
CLAIMS = next(resource for resource in CHILDREN if resource.kind == "PersistentVolumeClaim")
DEPLOYMENTS = next(resource for resource in CHILDREN if resource.kind == "Deployment")
OPENAPI = f"/openapi/v3/apis/{GROUP}/{VERSION}"
_VERSION = re.compile(r'"version"\s*:\s*"([0-9A-Za-z.+_-]{1,64})"')
_AT_ONCE = 8
_LATE = timedelta(minutes=1)
"""By how much this machine's clock may differ from the cluster's."""


def of_reading(reading: load.Reading, *, local: bool) -> ObjectFacts:
    """What a file holds, planned for a cluster or for this machine, whose model's files are looked at then."""
    serving, site = reading.serving, Site("local") if local else CLUSTER
    if serving is None:
        return ObjectFacts("", "", None, None, reading.faults)
    known, model = _model(serving.spec) if local else (None, ())
    found = _planned(reading, serving, site, Observed(facts=known))
    return replace(found, local=local, model=model, disks=_full_disks(found) if local else ())


def _full_disks(facts: ObjectFacts) -> tuple[tuple[str, str], ...]:
    """The disks of this machine that do not hold what the pods of a plan may write, each with the way out."""
    try:
        found = of_objects(facts.plan.objects if facts.plan is not None else ())[0]
        return tuple(room.full_disks(found, root(), room.free_disk)) if found else ()
    except (ManifestFault, OSError):
        # What does not run here at all, or a folder that may not be read, is told elsewhere.
        return ()


def _model(spec: KVServingSpec) -> tuple[ModelFacts | None, tuple[tuple[str, str], ...]]:
    """Facts of the model's files on this machine, and what is wrong with them, each with the way out."""
    model = spec.model
    try:
        known = model_config.facts(model)
    except InvalidSpec as error:
        fix = "do what the sentence says: until then nothing is checked that depends on the model's layers and heads"
        return None, tuple((fault.message, fix) for fault in error.faults)
    path = source(model.uri).reference
    brought = any(holds_path(role.template, path) for role in (spec.prefill, spec.decode) if role is not None)
    fault = None if brought else preflight.model_fault(path, root() / "claims")
    return known, () if fault is None else ((f"{fault.folder} {fault.what}", fault.way_out),)


def _planned(reading: load.Reading, serving: KVServing, site: Site, facts: Observed) -> ObjectFacts:
    faults = tuple(dict.fromkeys((*reading.faults, *check(serving, site=site, observed=facts))))
    spec = serving.spec.model_dump(by_alias=True, mode="json")
    name, namespace = serving.metadata.name, serving.metadata.namespace
    if faults:
        return ObjectFacts(name, namespace, serving, None, public(faults, spec))
    try:
        made = plan(serving, site=site, observed=facts)
    except InvalidSpec as error:
        return ObjectFacts(name, namespace, serving, None, public(error.faults, spec))
    return ObjectFacts(name, namespace, serving, made)


async def of_cluster(connection: Connection, name: str) -> ObjectFacts:
    """One object with its children, pods, events, Secrets (names of keys), claims, nodes and engines' counters.

    What may not be read is noted. Raises ``NoSuchObject``, and ``EnvironmentFault`` where the object itself cannot be
    had.
    """
    try:
        body = await read_named(connection, name)
    except ApiFailure as failure:
        raise refused(connection.server, failure) from None
    namespace = connection.namespace
    gatherer = _Gatherer(connection, namespace, name)
    stored = serving_of(body)
    children, pods = await asyncio.gather(gatherer.children(), gatherer.listed(PODS, namespace, labelled=True))
    known = {child.identity: child for child in map(_child, children)}
    view = View(stored, known, tuple(pod_state(pod) for pod in pods or ()))
    reading = read(stored, CLUSTER, observed_of(view, frozenset()))
    secrets = needed(reading.plan.objects) if reading.plan is not None else {}
    events, nodes, keys, claims, engines, schema = await asyncio.gather(
        gatherer.events(
            {name, *(str(pod["metadata"]["name"]) for pod in pods or ()), *(c.name for c in known.values())}
        ),
        gatherer.listed(NODES, None),
        gatherer.keys(secrets),
        gatherer.claims(pods or ()),
        gatherer.engines(pods or ()),
        gatherer.schema(),
    )
    around, quotas, ranges, classes, operators = await asyncio.gather(
        gatherer.namespace(),
        gatherer.listed(QUOTAS, namespace),
        gatherer.listed(RANGES, namespace),
        gatherer.listed(CLASSES, None),
        gatherer.operators(),
    )
    live = Live(
        body=body,
        children=tuple(children),
        pods=tuple(pods or ()),
        events=tuple(events),
        nodes=nodes,
        secrets=keys,
        claims=claims,
        engines=engines,
        schema=schema,
        hidden=frozenset(gatherer.hidden),
        unread=unique(gatherer.unread),
        absent=frozenset(gatherer.absent),
        namespace=around,
        quotas=quotas,
        ranges=ranges,
        classes=classes,
        operators=operators,
    )
    spec = stored.spec
    return ObjectFacts(name, namespace, reading.serving, reading.plan, public(reading.faults, spec), live)


def _child(body: Body) -> Child:
    return child_of(body, str(body["apiVersion"]), str(body["kind"]))


class _Gatherer:
    """Reads what belongs to one object; what it may not read becomes an entry of ``unread``."""

    def __init__(self, connection: Connection, namespace: str, name: str) -> None:
        self._connection = connection
        self._namespace = namespace
        self._name = name
        self.unread: list[Unread] = []
        self.hidden: set[str] = set()
        self.absent: set[str] = set()

    async def listed(
        self, resource: Resource, namespace: str | None, *, labelled: bool = False
    ) -> tuple[Body, ...] | None:
        """All objects of a kind, those of the object alone with ``labelled``; ``None`` where they may not be read."""
        selector = f"{labels.NAME}={self._name}" if labelled else ""
        found: list[Body] = []
        try:
            async for page in self._connection.kube.list(resource, namespace, selector=selector):
                found += [{"apiVersion": resource.api_version, "kind": resource.kind, **item} for item in page.items]
        except ApiFailure as failure:
            if failure.kind_missing and resource.optional:
                self.absent.add(resource.kind)
            else:
                self.hidden.add(resource.kind)
                self._missed(resource.full_name, failure, f"grant list on {resource.full_name}")
            return None
        return tuple(found)

    async def children(self) -> list[Body]:
        """Everything of the operator's kinds that carries the object's label."""
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(resource: Resource) -> tuple[Body, ...]:
            async with limit:
                return await self.listed(resource, self._namespace, labelled=True) or ()

        return [body for found in await asyncio.gather(*map(one, CHILDREN)) for body in found]

    async def operators(self) -> Operators | None:
        """The operators of the cluster; ``None`` where their Deployments may not be read."""
        try:
            deployments = await self._all(DEPLOYMENTS, SELECTOR)
        except ApiFailure as failure:
            self._missed(
                "the operator's Deployment", failure, f"grant list on {DEPLOYMENTS.full_name} of all namespaces"
            )
            return None
        try:
            leases = await self._all(LEASES, "")
        except ApiFailure:
            return Operators(deployments)  # The finding says what is not known then.
        return Operators(deployments, frozenset(filter(None, map(holding, leases))))

    async def _all(self, resource: Resource, selector: str) -> tuple[Body, ...]:
        return tuple(
            [b async for page in self._connection.kube.list(resource, None, selector=selector) for b in page.items]
        )

    async def namespace(self) -> Body | None:
        """The namespace itself, whose labels say what its pods may."""
        try:
            return await self._connection.kube.read(f"/api/v1/namespaces/{self._namespace}")
        except ApiFailure as failure:
            self._missed("the namespace", failure, "grant get on namespaces to have Pod Security looked at")
            return None

    async def events(self, names: Iterable[str]) -> list[Body]:
        """Events about the objects called ``names``, the newest first."""
        wanted = set(names)
        found = await self.listed(EVENTS, self._namespace) or ()
        ours = [event for event in found if (event.get("involvedObject") or {}).get("name") in wanted]
        return sorted(ours, key=lambda event: str(event.get("lastTimestamp") or ""), reverse=True)

    async def keys(self, names: Iterable[str]) -> dict[str, Keys | None] | None:
        """The keys of Secrets; ``None`` where Secrets may not be read. No value outlives this call."""
        found: dict[str, Keys | None] = {}
        try:
            for name in names:
                body = await self._connection.kube.get(SECRETS, self._namespace, name)
                found[name] = None if body is None else keys_of(body)
        except ApiFailure as failure:
            self._missed("secrets", failure, "grant get on secrets to have their keys checked; values are never shown")
            return None
        return found

    async def claims(self, pods: Iterable[Body]) -> dict[str, Body | None]:
        """The claims that the pods mount."""
        found: dict[str, Body | None] = {}
        names = {
            str(volume["persistentVolumeClaim"].get("claimName"))
            for pod in pods
            for volume in (pod.get("spec") or {}).get("volumes") or ()
            if volume.get("persistentVolumeClaim")
        }
        for name in sorted(names):
            try:
                found[name] = await self._connection.kube.get(CLAIMS, self._namespace, name)
            except ApiFailure as failure:
                self._missed(f"claim {name}", failure, f"grant get on {CLAIMS.full_name}")
        return found

    async def engines(self, pods: Iterable[Body]) -> dict[str, Engine]:
        """Version and counters of the engines that are ready, through the apiserver's proxy."""
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(pod: Body) -> tuple[str, Engine | None]:
            state = pod_state(pod)
            path = pod_path(self._namespace, state.name, state.http)
            async with limit:
                try:
                    series = Series.parse(await self._connection.kube.text(f"{path}/metrics"))
                except ApiFailure as failure:
                    self._missed(f"counters of pod {state.name}", failure, _PROXY)
                    return state.name, None
                except ValueError:
                    self.unread.append(Unread(f"counters of pod {state.name}", "they are no Prometheus text", _PROXY))
                    return state.name, None
                return state.name, Engine(await self._version(path), series)

        ready = [pod for pod in pods if role_of(pod) in ("prefill", "decode") and pod_state(pod).serving]
        answers = await asyncio.gather(*map(one, ready))
        return {name: engine for name, engine in answers if engine is not None}

    async def _version(self, path: str) -> str | None:
        try:
            found = _VERSION.search(await self._connection.kube.text(f"{path}/version"))
        except ApiFailure:
            return None  # The counters came: an engine without this endpoint is no finding.
        return found[1] if found else None

    async def schema(self) -> Body | None:
        """The kind's schema as the apiserver publishes it."""
        return await published_schema(self._connection, self.unread)

    def _missed(self, what: str, failure: ApiFailure, fix: str) -> None:
        self.unread.append(unread(what, failure, fix))


_PROXY = (
    "grant get on pods/proxy; a network policy or CNI that keeps the control plane from the pods does so as well, and "
    "the operator's conditions tell the rest"
)


def unread(what: str, failure: ApiFailure, fix: str) -> Unread:
    """What could not be read, without what the server quotes."""
    reason = "may not be read" if failure.status == 403 else f"cannot be read ({failure.status or failure.reason})"
    return Unread(what, f"{what} {reason}", fix)


def holding(lease: Body) -> tuple[str, str] | None:
    """Namespace and name of a Lease by which an operator writes at this moment; ``None`` for any other."""
    metadata, spec = lease["metadata"], lease.get("spec") or {}
    if NAME not in metadata["name"] or not spec.get("holderIdentity") or not spec.get("renewTime"):
        return None
    until = times.read(spec["renewTime"]) + timedelta(seconds=int(spec.get("leaseDurationSeconds") or 0)) + _LATE
    return (metadata["namespace"], metadata["name"]) if datetime.now(UTC) < until else None


def keys_of(body: Mapping[str, Any]) -> Keys:
    """Names of a Secret's keys, and which are empty."""
    data = body.get("data") or {}
    return Keys(frozenset(data), frozenset(key for key, value in data.items() if not value))


async def published_schema(connection: Connection, missed: list[Unread]) -> Body | None:
    """The schema of ``KVServing`` from the apiserver's OpenAPI; ``None`` where it has none or it may not be read."""
    try:
        document = await connection.kube.read(OPENAPI)
    except ApiFailure as failure:
        missed.append(unread("the published schema", failure, "grant get on /openapi/*"))
        return None
    for found in ((document or {}).get("components") or {}).get("schemas", {}).values():
        kinds = found.get("x-kubernetes-group-version-kind") or ()
        if any(entry.get("kind") == KIND and entry.get("group") == GROUP for entry in kinds):
            schema: Body = found
            return schema
    return None
