"""What GitOps tools see of an object that the operator serves: no difference, and no field that is not theirs.

Argo CD and Flux compare by a server-side apply that is not carried out.
"""

from __future__ import annotations

from typing import Any

import yaml
from e2e.controlplane.api import Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.operator.objects import condition, path_of
from tests.examples import files

# Those of one machine name a folder in the user's home, which no cluster has.
EXAMPLES = [path for path in files() if "file://~" not in path.read_text()]
TOOL = "argocd-controller"


def written(namespace: str) -> list[Json]:
    """The examples, as they stand in their files."""
    objects = [yaml.safe_load(path.read_text()) for path in EXAMPLES]
    return [{**obj, "metadata": {**obj["metadata"], "namespace": namespace}} for obj in objects]


def seen(plane: ControlPlane, obj: Json) -> Json:
    """Return the object once the operator has told what it found."""
    found = plane.api.wait(
        path_of(obj["metadata"]["namespace"], obj["metadata"]["name"]),
        lambda o: condition(o, "ConfigValid").get("status") == "True",
        what=f"a status of {obj['metadata']['name']}",
        timeout=40,
    )
    assert found is not None
    return found


def compared(plane: ControlPlane, obj: Json) -> tuple[Json, Json]:
    """Return the object as it is, and as an apply would make it."""

    def bare(found: Json) -> Json:
        left = ("managedFields", "resourceVersion")
        kept = {key: value for key, value in found["metadata"].items() if key not in left}
        return {"metadata": kept, "spec": found["spec"]}

    live = plane.api.get(path_of(obj["metadata"]["namespace"], obj["metadata"]["name"]))
    return bare(live), bare(plane.api.apply(obj, manager=TOOL, dryRun="All"))


def test_applying_an_example_again_changes_nothing(plane: ControlPlane, namespace: str, start: Any) -> None:
    start()
    objects = written(namespace)
    for obj in objects:
        plane.api.apply(obj, manager=TOOL)
    for obj in objects:
        before = seen(plane, obj)
        live, wanted = compared(plane, obj)
        assert live == wanted
        plane.api.apply(obj, manager=TOOL)
        after = seen(plane, obj)
        assert after["metadata"]["generation"] == before["metadata"]["generation"] == 1
        assert after["spec"] == obj["spec"]
        assert not {"annotations", "finalizers", "labels", "ownerReferences"} & set(after["metadata"])
        writers = {entry["manager"]: list(entry["fieldsV1"]) for entry in after["metadata"]["managedFields"]}
        assert writers.pop(TOOL) == ["f:spec"]
        assert list(writers.values()) == [["f:status"]]


def test_a_difference_would_be_seen(plane: ControlPlane, namespace: str, start: Any) -> None:
    start()
    obj = written(namespace)[0]
    plane.api.apply(obj, manager=TOOL)
    found = seen(plane, obj)
    plane.api.merge(path_of(namespace, found["metadata"]["name"]), {"spec": {"decode": {"replicas": 7}}})
    live, wanted = compared(plane, obj)
    assert live != wanted
    assert (live["spec"]["decode"]["replicas"], wanted["spec"]["decode"]["replicas"]) == (7, 1)
