"""Objects as an apiserver would send them, for pure tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvserving_operator.control.children import owner_reference, wanted
from kvserving_operator.control.observe import Child, Key, Serving, Store, View, child_of, serving_of
from kvserving_operator.control.pods import PodState, pod_state
from kvserving_operator.control.reconcile import Reading, read
from kvserving_operator.plan.types import CLUSTER, Observed
from kvserving_operator.plan.workloads import KINDS

KEY = Key("prod", "qwen")
SPEC: dict[str, Any] = {
    "model": {"uri": "hf://Qwen/Qwen3-8B"},
    "prefill": {"replicas": 1},
    "decode": {"replicas": 2},
}


def stored(spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **metadata: Any) -> Serving:
    return serving_of(
        {
            "metadata": {
                "namespace": "prod",
                "name": "qwen",
                "uid": "u1",
                "generation": 1,
                "resourceVersion": "7",
                **metadata,
            },
            "spec": SPEC if spec is None else spec,
            "status": status or {},
        }
    )


def planned(serving: Serving) -> Reading:
    return read(serving, CLUSTER, Observed())


def fields_of(value: Any) -> Any:
    """The ``fieldsV1`` that the apiserver keeps of an applied map: lists of maps by key, other lists as one."""
    if isinstance(value, dict):
        return {f"f:{key}": fields_of(member) for key, member in value.items()}
    return {}


def live(manifest: dict[str, Any], serving: Serving, **changes: Any) -> dict[str, Any]:
    """A manifest as it is in the cluster after it was applied for ``serving``."""
    body = dict(wanted(serving, manifest, None).body)
    metadata = body["metadata"]
    kept = {key: value for key, value in metadata.items() if key not in ("name", "namespace", "ownerReferences")}
    parts = {key: value for key, value in body.items() if key not in ("apiVersion", "kind", "metadata")}
    entry = {
        "manager": "kvserving-operator",
        "operation": "Apply",
        "fieldsV1": fields_of({**parts, "metadata": kept}),
    }
    return {
        **body,
        "metadata": {
            **metadata,
            "uid": f"uid-{metadata['name']}",
            "resourceVersion": "10",
            "generation": 1,
            "managedFields": [entry],
            **changes.pop("metadata", {}),
        },
        **changes,
    }


def children(serving: Serving, *, ready: bool = True, only: str = "") -> dict[tuple[str, str], Child]:
    """All planned children, with workloads that are ready or not."""
    reading = planned(serving)
    assert reading.plan is not None
    found = {}
    for manifest in reading.plan.objects:
        kind = str(manifest["kind"])
        body = live(dict(manifest), serving)
        if kind in KINDS:
            count = manifest["spec"].get("replicas", 1) if ready else 0
            body["status"] = {"observedGeneration": 1, "readyReplicas": count, "updatedReplicas": count}
        child = child_of(body, str(manifest["apiVersion"]), kind)
        if not only or kind == only:
            found[child.identity] = child
    return found


def pods_of(found: Mapping[tuple[str, str], Child]) -> list[PodState]:
    """The pods that the workloads count as ready, each with its workload's name before its own."""
    return [
        pod(f"{child.name}-5c6f7d8b9-{number}" if kind == "Deployment" else f"{child.name}-{number}",
            child.role, child.revision, traffic=child.workload.traffic)
        for (kind, _), child in found.items()
        if child.workload is not None
        for number in range(child.workload.ready)
    ]  # fmt: skip


def pod(
    name: str,
    role: str,
    revision: str,
    *,
    ready: bool = True,
    uid: str = "",
    traffic: bool = False,
    **status: Any,
) -> PodState:
    """A pod, whose owner is what its name says before the last dash."""
    marks = {"kvserving.dev/role": role, "kvserving.dev/revision": revision}
    return pod_state(
        {
            "metadata": {
                "name": name,
                "uid": uid or f"uid-{name}",
                "resourceVersion": "1",
                "labels": {**marks, "kvserving.dev/traffic": "on"} if traffic else marks,
                "ownerReferences": [{"name": name.rpartition("-")[0], "controller": True}],
            },
            "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8000}]}]},
            "status": {
                "podIP": "10.0.0.1",
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                **status,
            },
        }
    )


def view(serving: Serving, found: dict[tuple[str, str], Child], *pods: PodState) -> View:
    return View(serving, found, pods)


def known(store: Store, key: Key = KEY) -> View:
    """What a store knows of an object, which it must know."""
    found = store.view(key)
    assert found is not None
    return found


__all__ = ["KEY", "SPEC", "children", "known", "live", "owner_reference", "planned", "pod", "pods_of", "stored", "view"]
