"""What tests of the operator wait for, and the identities that they compare."""

from __future__ import annotations

from typing import Any

from e2e.controlplane.api import Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.operator.objects import children, condition, differences, eventually, path_of


def settle(plane: ControlPlane, obj: Json, *, what: str = "Ready") -> Json:
    """Create ``obj`` and return it once it is ready (or another condition is true)."""
    plane.api.create(obj)
    return wait_for(plane, obj, what)


def wait_for(plane: ControlPlane, obj: Json, kind: str, status: str = "True", timeout: float = 40) -> Json:
    found = plane.api.wait(
        path_of(obj["metadata"]["namespace"], obj["metadata"]["name"]),
        lambda o: condition(o, kind).get("status") == status,
        what=f"{kind}={status}",
        timeout=timeout,
    )
    assert found is not None
    return found


def wait_children(plane: ControlPlane, namespace: str, names: set[tuple[str, str]], timeout: float = 30) -> Any:
    return eventually(
        lambda: children(plane, namespace), lambda found: set(found) == names, what=f"children {names}", timeout=timeout
    )


def wait_for_ready(plane: ControlPlane, namespace: str, role: str, summary: str) -> None:
    plane.api.wait(
        path_of(namespace),
        lambda o: o is not None and o["status"]["roles"][role]["summary"] == summary,
        what=f"{role} {summary}",
        timeout=20,
    )


def wait_planned(plane: ControlPlane, namespace: str, timeout: float = 40) -> Json:
    """Return the object once it is ready at its generation and its children are as planned."""

    def look() -> list[str]:
        found = plane.api.get(path_of(namespace))
        ready = condition(found, "Ready")
        generation = found["metadata"]["generation"]
        if ready.get("status") != "True" or ready["observedGeneration"] != generation:
            return [f"Ready is {ready}, generation {generation}"]
        return differences(plane, namespace)

    eventually(look, lambda left: not left, what="children as planned", timeout=timeout)
    return plane.api.get(path_of(namespace))


def at_generation(plane: ControlPlane, namespace: str, generation: int, timeout: float = 20) -> Json:
    found = plane.api.wait(
        path_of(namespace),
        lambda o: o is not None and (o.get("status") or {}).get("observedGeneration") == generation,
        what=f"generation {generation} observed",
        timeout=timeout,
    )
    assert found is not None
    return found


def uids(plane: ControlPlane, namespace: str) -> dict[tuple[str, str], str]:
    return {identity: child["metadata"]["uid"] for identity, child in children(plane, namespace).items()}


def pods(plane: ControlPlane, namespace: str) -> dict[str, str]:
    found = plane.api.items(f"/api/v1/namespaces/{namespace}/pods", labelSelector="kvserving.dev/name")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}
