"""Objects that the operator's tests create, and how they look at them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from e2e.controlplane.api import Json
from e2e.controlplane.cluster import Cluster

from kvserving_operator.api.load import load
from kvserving_operator.control.permissions import CHILDREN, SECRETS
from kvserving_operator.plan import Plan, Site, plan

_POLL = 0.05


def serving(namespace: str, name: str = "qwen", **spec: Any) -> Json:
    """Return a small object; ``spec`` replaces whole sections."""
    return {
        "apiVersion": "kvserving.dev/v1alpha1",
        "kind": "KVServing",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"uri": "hf://Qwen/Qwen3-8B"},
            "prefill": {"replicas": 1},
            "decode": {"replicas": 2},
            **spec,
        },
    }


def path_of(namespace: str, name: str = "qwen") -> str:
    """Return the path of an object."""
    return f"/apis/kvserving.dev/v1alpha1/namespaces/{namespace}/kvservings/{name}"


def condition(obj: Mapping[str, Any] | None, kind: str) -> Mapping[str, Any]:
    """Return one condition of an object, empty where there is none."""
    for found in ((obj or {}).get("status") or {}).get("conditions") or ():
        if found["type"] == kind:
            return dict(found)
    return {}


def planned(cluster: Cluster, obj: Json, *, own_namespace: str) -> Plan:
    """Return the plan of an object as the operator in ``own_namespace`` makes it."""
    return plan(load(obj, strict=False), site=Site("cluster", operator_namespace=own_namespace))


def children(cluster: Cluster, namespace: str) -> dict[tuple[str, str], Json]:
    """Return everything in a namespace that carries our label, pods apart, by kind and name."""
    found: dict[tuple[str, str], Json] = {}
    for resource in (*CHILDREN, SECRETS):
        if resource.optional:
            continue
        base = f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.api_version}"
        path = f"{base}/namespaces/{namespace}/{resource.plural}"
        for item in cluster.api.items(path, labelSelector="kvserving.dev/name"):
            found[resource.kind, item["metadata"]["name"]] = item
    return found


def expected(plan: Plan) -> set[tuple[str, str]]:
    """Return kind and name of everything that a plan makes on a cluster without optional kinds."""
    optional = {resource.kind for resource in CHILDREN if resource.optional}
    made = {(str(m["kind"]), str(m["metadata"]["name"])) for m in plan.objects if m["kind"] not in optional}
    return made | {("Secret", secret.name) for secret in plan.generated_secrets}


def eventually(look: Callable[[], Any], holds: Callable[[Any], bool], *, what: str, timeout: float = 30) -> Any:
    """Return what ``look`` returns as soon as ``holds`` of it; for states that no single watch tells."""
    deadline = time.monotonic() + timeout
    while True:
        found = look()
        if holds(found):
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:.0f} s: {what}; last seen: {found}")
        time.sleep(_POLL)


def contains(live: Any, wanted: Any, where: str = "") -> list[str]:
    """Return where ``live`` lacks something of ``wanted``. Quantities and numbers in text are compared as text."""
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return [f"{where}: {live!r} is no map"]
        return [miss for key, value in wanted.items() for miss in contains(live.get(key), value, f"{where}.{key}")]
    if isinstance(wanted, list):
        if not wanted and live is None:
            return []
        if not isinstance(live, list) or len(live) < len(wanted):
            return [f"{where}: {live!r} is shorter than {wanted!r}"]
        pairs: Iterable[tuple[Any, Any]] = zip(live, wanted, strict=False)
        return [miss for i, (a, b) in enumerate(pairs) for miss in contains(a, b, f"{where}[{i}]")]
    return [] if str(live) == str(wanted) else [f"{where}: {live!r} is not {wanted!r}"]
