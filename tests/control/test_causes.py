from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.control.bodies import children, planned, pod, stored

from kvserving_operator.control.asks import room
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
    said = cause(unpulled("ErrImagePull", f"{RPC}{ANSWER}"))[1]
    assert said.startswith(f"pod d: ImagePullBackOff (container engine: image docker.io/nosuch:v1: {ANSWER}); ")


RPC = (
    'rpc error: code = NotFound desc = failed to pull and unpack image "docker.io/nosuch:v1": failed to resolve '
    'reference "docker.io/nosuch:v1": '
)
ANSWER = "docker.io/nosuch:v1: not found"
BACK_OFF = 'Back-off pulling image "docker.io/nosuch:v1"'


def unpulled(reason: str, message: str, name: str = "engine", role: str = "decode") -> PodState:
    """A pod of the planned revision with a container whose image is not had."""
    plan = planned(stored()).plan
    assert plan is not None
    state = {"waiting": {"reason": reason, "message": message}}
    of = {**container(0, state=state), "name": name, "image": "docker.io/nosuch:v1"}
    return pod("d", role, plan.revision, ready=False, containerStatuses=[of])


def test_an_attempt_to_pull_and_the_pause_after_it_are_one_state() -> None:
    attempt, pause = unpulled("ErrImagePull", f"{RPC}{ANSWER}"), unpulled("ImagePullBackOff", BACK_OFF)
    told = unpulled("ImagePullBackOff", f"{BACK_OFF}: ErrImagePull: {RPC}{ANSWER}")
    assert told == attempt
    # Some kubelets leave the answer out between two attempts.
    assert pause != attempt
    assert pause.after(attempt) == attempt
    other = unpulled("ErrImagePull", "unauthorized")
    assert other.after(attempt) == other
    assert replace(pause, failing_message="another image").after(attempt).registry == ""


def test_the_ports_of_attempts_and_credentials_are_no_part_of_the_answer() -> None:
    answers = {
        unpulled("ErrImagePull", f"read tcp 10.0.0.1:{port}->1.2.3.4:443: reset, https://a:{'s3cret'}@h").registry
        for port in (40001, 40002)
    }
    assert answers == {"read tcp 10.0.0.1->1.2.3.4:443: reset, https://***@h"}


@pytest.mark.parametrize(
    ("role", "name", "field"),
    [
        ("decode", "engine", "spec.engine.image, which is vLLM's own of spec.engine.version where it is not set"),
        ("prefill", "prefetch", "spec.engine.image, which is vLLM's own of spec.engine.version where it is not set"),
        ("decode", "connector", "connector.image of the operator's chart, which is no field of the object"),
        ("decode", "sidecar", "spec.decode.template"),
        ("router", "router", "spec.router.image, which is that of spec.router.type where it is not set"),
    ],
)
def test_an_image_that_cannot_be_pulled_is_told_with_what_names_it(role: str, name: str, field: str) -> None:
    plan = planned(stored()).plan
    assert plan is not None
    [child] = [c for c in children(stored()).values() if c.kind == "Deployment" and c.role == role]
    said = why(child, [unpulled("ErrImagePull", "no", name, role)])[1]
    assert f"the image is named by {field}; name one that the registry has" in said
    assert (f"spec.{role}.template.spec.imagePullSecrets" in said) is (role != "router")


@pytest.mark.parametrize(
    ("role", "said", "surge", "fields"),
    [
        ("decode", "1 Insufficient nvidia.com/gpu.", False, "spec.decode.resources, spec.decode.parallelism, spec.dec"),
        ("prefill", "3 Insufficient memory.", False, "spec.prefill.resources, spec.cache.l1 (where it is set), spec.p"),
        ("decode", "1 Insufficient cpu.", False, "spec.decode.resources, spec.decode.replicas: lower it, or add nodes"),
        ("decode", "1 Insufficient cpu.", True, "spec.decode.resources, spec.decode.replicas, spec.rollout.maxSurge, "),
        ("router", "1 Insufficient cpu.", False, "spec.router.replicas: lower it, or add nodes"),
        ("decode", "1 node(s) had untolerated taint(s).", False, "spec.decode.resources, spec.decode.parallelism, spec"
         ".decode.template and spec.scheduling, spec.decode.replicas"),
    ],
)  # fmt: skip
def test_a_pod_without_room_is_told_with_the_fields_that_ask_for_it(
    role: str, said: str, surge: bool, fields: str
) -> None:
    plan = planned(stored()).plan
    assert plan is not None
    [child] = [c for c in children(stored()).values() if c.kind == "Deployment" and c.role == role]
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": f"0/9 nodes: {said}"}
    waits = pod("d", role, plan.revision, ready=False, conditions=[told])
    message = why(child, [waits], surge=surge)[1]
    assert message.startswith(f"pod d: 0/9 nodes: {said}; asked for by {fields}")


@pytest.mark.parametrize(
    ("role", "said", "part", "way"),
    [
        ("router", "1 Insufficient cpu.", {"replicas": 1},
         "it asks for no more than it must have: add nodes, or lower what engines ask for beside it (spec.d"),
        ("router", "1 Insufficient cpu.", {}, "asked for by spec.router.replicas: lower it, or add nodes"),
        ("decode", "1 Insufficient nvidia.com/gpu.", {"replicas": 1},
         "it asks for no more than it must have: add nodes"),
        ("decode", "1 Insufficient nvidia.com/gpu.", {"parallelism": {"tensor": 4}},
         "asked for by spec.decode.parallelism: lower it, or add nodes"),
        ("decode", "1 Insufficient nvidia.com/gpu.", {"resources": {"limits": {"nvidia.com/gpu": 4}}},
         "asked for by spec.decode.resources: lower it, or add nodes"),
        ("decode", "1 Insufficient cpu.", {"replicas": 3},
         "asked for by spec.decode.resources, spec.decode.replicas: lower it, or add nodes"),
        ("decode", "1 Insufficient cpu.", {"autoscaling": {"max": 3}},
         "asked for by spec.decode.resources, spec.decode.replicas: lower it, or add nodes"),
    ],
)  # fmt: skip
def test_what_is_at_its_least_is_not_to_be_lowered(role: str, said: str, part: dict[str, Any], way: str) -> None:
    assert room(role, said, {"decode": {}, role: part}, surge=False).startswith(way)


def test_a_quota_is_to_be_raised_where_nothing_can_be_lowered() -> None:
    told = room("router", "", {"router": {"replicas": 1}}, surge=False, otherwise="raise the quota")
    assert told == "it asks for no more than it must have: raise the quota"
