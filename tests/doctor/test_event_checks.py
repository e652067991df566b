"""What is told of events: their cause by what they say, and only while their part is not well."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doctor.world import found, healthy, spoiled, with_child, with_pod

from kvserving_operator.doctor.facts import ObjectFacts

FACTS = healthy()
assert FACTS.live is not None
LIVE = FACTS.live
POD = next(p["metadata"]["name"] for p in LIVE.pods if p["metadata"]["labels"]["kvserving.dev/role"] == "router")
STORE = next(child["metadata"]["name"] for child in LIVE.children if child["kind"] == "StatefulSet")


def event(reason: str, message: str, kind: str = "Pod", name: str = POD) -> dict[str, Any]:
    about = {"kind": kind, "name": name}
    return {"type": "Warning", "reason": reason, "message": message, "involvedObject": about}


def waiting(pod: Any) -> None:
    pod["status"] = {"conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [
        {"name": "router", "state": {"waiting": {"reason": "ContainerCreating"}}}]}  # fmt: skip


def during(*events: Any) -> ObjectFacts:
    return spoiled(with_pod(FACTS, "router", waiting), events=events)


CAUSES = [
    (
        "FailedMount",
        'MountVolume.SetUp failed for volume "api-key" : secret "router-key" not found',
        "Secret router-key",
    ),
    ("FailedMount", 'MountVolume.SetUp failed for volume "c" : configmap "extra" not found', "ConfigMap extra"),
    ("FailedMount", "references non-existent secret key: api-key", "add the key api-key"),
    ("FailedMount", "driver name nfs.csi.k8s.io not found in the list of registered CSI drivers", "DaemonSet"),
    ("FailedMount", "hostPath type check failed: /data is not a directory", "/data is not on the node"),
    ("FailedMount", "timed out waiting for the condition", "the message says which volume"),
    ("FailedAttachVolume", 'Multi-Attach error for volume "v"', "ReadWriteMany"),
    ("FailedAttachVolume", "rpc error: code = DeadlineExceeded", "volumeattachments"),
    ("Evicted", "The node was low on resource: ephemeral-storage.", "spec.model.cache"),
    ("Evicted", "The node was low on resource: memory.", "memory limit"),
    ("Evicted", "The node had condition: [PIDPressure].", "of what the node had too little"),
    ("FailedCreatePodSandBox", "no network", "runtime is at fault"),
]


@pytest.mark.parametrize(("reason", "message", "way_out"), CAUSES)
def test_the_way_out_of_an_event_is_that_of_what_it_says(reason: str, message: str, way_out: str) -> None:
    told = found(during(event(reason, message)))[f"event-{reason}"]
    assert told.what == message
    assert way_out in told.fix
    assert ("driver" in told.fix) == ("driver" in message)


@pytest.mark.parametrize("reason", ["FailedMount", "FailedPreStopHook", "Evicted"])
def test_an_event_of_a_pod_that_is_ready_again_is_not_told(reason: str) -> None:
    assert f"event-{reason}" in found(during(event(reason, "x")))
    assert found(spoiled(FACTS, events=(event(reason, "x"),))) == {}


def test_a_volume_that_was_mounted_late_is_not_told_of_a_pod_that_fails_by_something_else() -> None:
    def ends(pod: Any) -> None:
        waiting(pod)
        pod["status"]["containerStatuses"][0]["lastState"] = {"terminated": {"exitCode": 1}}

    failing = spoiled(
        with_pod(FACTS, "router", ends), events=(event("FailedMount", "x"), event("FailedPostStartHook", "x"))
    )
    assert "event-FailedMount" not in found(failing)
    assert "event-FailedPostStartHook" in found(failing)


def test_events_of_workloads_and_claims_are_told_until_these_are_complete() -> None:
    refused = event(
        "FailedCreate", 'pods "x" is forbidden: exceeded quota: team, requested: cpu=1', "StatefulSet", STORE
    )
    assert found(spoiled(FACTS, events=(refused,))) == {}
    lacking = with_child(FACTS, "StatefulSet", "store", lambda child: child["status"].update(readyReplicas=0))
    told = found(spoiled(lacking, events=(refused,)))["event-FailedCreate"]
    assert "raise the ResourceQuota team" in told.fix
    assert told.why == "its pods are not made"
    unmade = event(
        "ProvisioningFailed", 'storageclass.storage.k8s.io "fast" not found', "PersistentVolumeClaim", "weights"
    )
    assert found(spoiled(FACTS, events=(unmade,))) == {}
    pending = {"weights": {"spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Pending"}}}
    told = found(spoiled(FACTS, claims=pending, events=(unmade,)))["event-ProvisioningFailed"]
    assert "storage class fast" in told.fix
