"""Objects that the operator's tests create, and how they look at them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from e2e.controlplane.api import Json
from e2e.controlplane.cluster import Cluster

from kvserving_operator.api.parse import plain
from kvserving_operator.api.v1alpha1 import KVServing
from kvserving_operator.control import scaling
from kvserving_operator.control.children import Action, decide, wanted
from kvserving_operator.control.observe import View, child_of, serving_of
from kvserving_operator.control.permissions import CHILDREN, SECRETS, resource_of
from kvserving_operator.plan.planning import plan
from kvserving_operator.plan.types import Observed, Plan, Site

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
    """Return the plan of an object as the operator in ``own_namespace`` makes it; an engine once chosen stays."""
    engine: Mapping[str, str] = (obj.get("status") or {}).get("engine") or {}
    observed = Observed(engine_version=engine.get("version"), engine_image=engine.get("image"))
    # Rules were evaluated by the apiserver; here they would take most of a test's time.
    value, faults, _ = plain(obj)
    assert faults == ()
    site = Site("cluster", operator_namespace=own_namespace)
    return plan(KVServing.model_validate(value), site=site, observed=observed)


def collections(namespace: str) -> Iterator[tuple[str, str]]:
    """Yield kind and path of every collection in which children lie on a cluster without optional kinds."""
    for resource in (*CHILDREN, SECRETS):
        if not resource.optional:
            base = f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.api_version}"
            yield resource.kind, f"{base}/namespaces/{namespace}/{resource.plural}"


def children(cluster: Cluster, namespace: str) -> dict[tuple[str, str], Json]:
    """Return everything in a namespace that carries our label, pods apart, by kind and name."""
    return {
        (kind, item["metadata"]["name"]): item
        for kind, path in collections(namespace)
        for item in cluster.api.items(path, labelSelector="kvserving.dev/name")
    }


def expected(plan: Plan) -> set[tuple[str, str]]:
    """Return kind and name of everything that a plan makes on a cluster without optional kinds."""
    optional = {resource.kind for resource in CHILDREN if resource.optional}
    scaled = (m for m in plan.objects if (m.get("spec") or {}).get("scaleTargetRef", {}).get("kind") not in optional)
    made = {(str(m["kind"]), str(m["metadata"]["name"])) for m in scaled if m["kind"] not in optional}
    return made | {("Secret", secret.name) for secret in plan.generated_secrets}


def differences(cluster: Cluster, namespace: str, name: str = "qwen") -> list[str]:
    """Return what keeps the object's children from being what the operator in the same namespace plans, and no more.

    Every planned field is compared; fields that the operator set once and the plan does not name any more count as a
    difference, as do children that the plan does not name. Generated Secrets may stay until their owner goes: the
    operator has no right to delete Secrets.
    """
    obj = cluster.api.get(path_of(namespace, name))
    wants = planned(cluster, obj, own_namespace=namespace)
    live = {
        identity: child
        for identity, child in children(cluster, namespace).items()
        if any(owner["kind"] == "KVServing" for owner in child["metadata"].get("ownerReferences") or ())
    }
    more = sorted(
        identity
        for identity in set(live) - expected(wants)
        if identity[0] != "Secret" and not former_spec(identity[0], live[identity])
    )
    found = [f"{kind} {child} is not planned" for kind, child in more]
    found += [f"{kind} {child} is missing" for kind, child in sorted(expected(wants) - set(live))]
    uid = obj["metadata"]["uid"]
    for (kind, child), body in live.items():
        owners = [(owner["uid"], owner.get("controller")) for owner in body["metadata"]["ownerReferences"]]
        if owners != [(uid, True)] or "deletionTimestamp" in body["metadata"]:
            found.append(f"{kind} {child} is deleted or not owned by this object alone: {owners}")
    stored = serving_of(obj)
    for manifest in wants.objects:
        body = live.get((str(manifest["kind"]), str(manifest["metadata"]["name"])), {})
        if not body:
            continue
        resource = resource_of(str(manifest["apiVersion"]), str(manifest["kind"]))
        seen = child_of(body, resource.api_version, resource.kind)
        whole = scaling.seeded(View(stored, {}, ()), manifest, seen)
        if decide(wanted(stored, whole, seen), seen, uid) is not Action.NOTHING:
            found.append(f"{seen} is not as applied last")
        fields = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind")}
        found += [f"{seen}{miss}" for miss in contains(body, fields)]
    return found


def former_spec(kind: str, child: Mapping[str, Any]) -> bool:
    """Whether a child is the spec of a former revision, which stays for undo."""
    return kind == "ConfigMap" and "kvserving.dev/revision" in child["metadata"]["labels"]


def eventually(look: Callable[[], Any], holds: Callable[[Any], bool], *, what: str, timeout: float = 60) -> Any:
    """Return what ``look`` returns as soon as ``holds`` of it; for states that no single watch tells."""
    deadline = time.monotonic() + timeout
    while True:
        found = look()
        if holds(found):
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:.0f} s: {what}; last seen: {found}")
        time.sleep(_POLL)


def contains(live: Any, wants: Any, where: str = "") -> list[str]:
    """Return where ``live`` lacks something of ``wants``. Quantities and numbers in text are compared as text."""
    if isinstance(wants, Mapping):
        if not isinstance(live, Mapping):
            return [f"{where}: {live!r} is no map"]
        return [miss for key, value in wants.items() for miss in contains(live.get(key), value, f"{where}.{key}")]
    if isinstance(wants, list):
        if not wants and live is None:
            return []
        if not isinstance(live, list) or len(live) != len(wants):
            return [f"{where}: {live!r} has another length than {wants!r}"]
        pairs: Iterable[tuple[Any, Any]] = zip(live, wants, strict=False)
        return [miss for i, (a, b) in enumerate(pairs) for miss in contains(a, b, f"{where}[{i}]")]
    return [] if str(live) == str(wants) else [f"{where}: {live!r} is not {wants!r}"]
