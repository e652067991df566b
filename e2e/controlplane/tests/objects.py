"""Objects that the harness's own tests create."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def config_map(namespace: str, name: str = "a", **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


def pod_spec(*, devices: int = 0, grace: int = 30, image: str = "engine:1") -> Json:
    limits = {"limits": {"nvidia.com/gpu": str(devices)}} if devices else {}
    container = {"name": "engine", "image": image, "resources": limits}
    return {"terminationGracePeriodSeconds": grace, "containers": [container]}


def pod(namespace: str, name: str, labels: dict[str, str] | None = None, **spec: Any) -> Json:
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec(**spec)}


def deployment(namespace: str, name: str, replicas: int, labels: dict[str, str] | None = None, **spec: Any) -> Json:
    labels = {"app": name, **(labels or {})}
    template = {"metadata": {"labels": labels}, "spec": pod_spec(**spec)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def condition(obj: Json | None, kind: str) -> Json:
    found = ((obj or {}).get("status") or {}).get("conditions") or []
    return next((c for c in found if c["type"] == kind), {})


def is_ready(obj: Json | None) -> bool:
    return condition(obj, "Ready").get("status") == "True"
