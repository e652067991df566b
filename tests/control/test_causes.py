from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.control.bodies import children, planned, pod, stored

from kvserving_operator.control.causes import why
from kvserving_operator.control.pods import PodState, pod_state
from kvserving_operator.reasons import Reason


def waiting(**status: Any) -> PodState:
    """A decode of the planned revision that is not ready."""
    plan = planned(stored()).plan
    assert plan is not None
    return pod("d", "decode", plan.revision, ready=False, **status)


def cause(*pods: PodState) -> tuple[Reason, str]:
    [decode] = [c for c in children(stored()).values() if c.kind == "Deployment" and c.role == "decode"]
    return why(decode, pods)


def container(restarts: int, *, code: int = 2, state: dict[str, Any] | None = None, **end: Any) -> dict[str, Any]:
    last = {"terminated": {"exitCode": code, **end}} if restarts else {}
    return {
        "name": "engine",
        "ready": False,
        "restartCount": restarts,
        "state": state or {"running": {}},
        "lastState": last,
    }


def test_engines_that_start_load_their_model() -> None:
    assert cause(waiting(containerStatuses=[container(0)]))[0] is Reason.LOADING_MODEL
    assert cause(waiting(containerStatuses=[container(1)]))[0] is Reason.LOADING_MODEL


def test_an_engine_that_ended_twice_fails_also_between_two_attempts() -> None:
    reason, message = cause(waiting(containerStatuses=[container(2)]))
    assert reason is Reason.POD_FAILING
    assert "container engine: exit code 2" in message


def test_a_container_that_never_ran_says_what_the_runtime_says() -> None:
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    never = container(1, code=128, state=state, reason="StartError", message='exec: "python3": not found')
    reason, message = cause(waiting(containerStatuses=[never]))
    assert reason is Reason.POD_FAILING
    assert 'StartError: exec: "python3": not found' in message


def test_what_our_code_said_of_its_end_is_shown() -> None:
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    ended = container(3, code=1, state=state, reason="Error", message="KVServing: the model's folder /m is not there\n")
    reason, message = cause(waiting(containerStatuses=[ended]))
    assert reason is Reason.POD_FAILING
    assert message.endswith("(container engine: the model's folder /m is not there)")


def test_what_our_code_said_of_a_first_end_is_told_at_once() -> None:
    once = container(1, code=1, reason="Error", message="KVServing: /m is not there\nand \x1b[31mmore")
    reason, message = cause(waiting(containerStatuses=[once]))
    assert reason is Reason.POD_FAILING
    assert message.endswith(r"(container engine: /m is not there\nand \x1b[31mmore)")
    begun = {**once, "restartCount": 0, "state": once["lastState"], "lastState": {}}
    assert cause(waiting(containerStatuses=[begun]))[0] is Reason.POD_FAILING
    again = {**once, "ready": True}
    assert "is not there" not in cause(waiting(containerStatuses=[again]))[1]


def test_what_an_engine_itself_wrote_at_its_end_is_not_shown() -> None:
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    ended = container(3, code=1, state=state, reason="Error", message="a prompt of somebody")
    assert "prompt" not in cause(waiting(containerStatuses=[ended]))[1]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ('0/1 nodes are available: persistentvolumeclaim "models" not found.', Reason.CLAIM_MISSING),
        ("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.", Reason.CLAIM_UNBOUND),
        ("0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind.", Reason.CLAIM_UNBOUND),
        ('persistentvolumeclaim "models" bound to non-existent persistentvolume "pv-1".', Reason.CLAIM_UNBOUND),
        ('0/1 nodes are available: persistentvolumeclaim "models" is being deleted.', Reason.CLAIM_MISSING),
        ("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", Reason.INSUFFICIENT_CAPACITY),
    ],
)
def test_a_pod_without_a_node_lacks_a_claim_or_room(said: str, reason: Reason) -> None:
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    assert cause(waiting(conditions=[told]))[0] is reason


@pytest.mark.parametrize(
    ("said", "hinted"),
    [
        ("0/12 nodes are available: 12 Insufficient nvidia.com/gpu.", True),
        ("0/12 nodes are available: 2 Insufficient nvidia.com/gpu.", False),
        ("0/12 nodes are available: 12 Insufficient memory.", False),
    ],
)
def test_a_cluster_in_which_no_node_has_a_gpu_is_told_of_both_ways_out(said: str, hinted: bool) -> None:
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    message = cause(waiting(conditions=[told]))[1]
    assert said in message
    assert ("device plugin" in message and "spec.engine.device: cpu" in message) is hinted


def test_a_claim_that_is_missing_is_told_with_both_ways_out() -> None:
    said = 'persistentvolumeclaim "modells" not found.'
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    assert cause(waiting(conditions=[told]))[1] == (
        "claim modells is not there: create it in this namespace, or name the one that is (that of a model by"
        " spec.model.uri)"
    )


def test_a_claim_without_a_volume_is_named() -> None:
    said = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    mounts = [{"name": "m", "persistentVolumeClaim": {"claimName": "models"}}, {"name": "tmp", "emptyDir": {}}]
    body = {
        "metadata": {"name": "d", "uid": "u", "labels": {"kvserving.dev/role": "decode"}},
        "spec": {"volumes": mounts},
        "status": {"conditions": [told]},
    }
    plan = planned(stored()).plan
    assert plan is not None
    _, message = cause(replace(pod_state(body), revision=plan.revision))
    assert message.startswith("pod d: no volume is bound to claim models: ")


def creating(reason: str) -> list[dict[str, Any]]:
    return [container(0, state={"waiting": {"reason": reason}})]


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("ContainerCreating", "its container is not made yet (ContainerCreating): the image is pulled or a volume"),
        ("PodInitializing", "its init containers have not ended"),
    ],
)
def test_a_container_that_is_not_made_yet_does_not_pass_for_one_that_is_silent(reason: str, said: str) -> None:
    assert cause(waiting(containerStatuses=creating(reason)))[1].startswith(f"pod d: {said}")


def test_a_router_that_does_not_answer_is_told_from_one_without_engines() -> None:
    plan = planned(stored()).plan
    assert plan is not None
    [router] = [c for c in children(stored()).values() if c.kind == "Deployment" and c.role == "router"]
    silent = pod("r", "router", plan.revision, ready=False)
    assert why(router, [silent]) == (Reason.STARTING, "pod r: it does not answer")
    told = why(router, [silent], engines=False)
    assert told == (Reason.STARTING, "pod r: it waits for engines, of which none takes requests")


def test_an_image_that_cannot_be_pulled_is_named() -> None:
    of = {**container(0, state={"waiting": {"reason": "ErrImagePull"}}), "image": "docker.io/nosuch/nosuch:v1"}
    assert (
        "ErrImagePull (container engine: image docker.io/nosuch/nosuch:v1)" in cause(waiting(containerStatuses=[of]))[1]
    )
