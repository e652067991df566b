"""What is told first is the cause: a pod that is not ready, and not what only follows from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.control.bodies import SPEC, pod
from tests.control.test_conditions import by_type, facts, with_pods, with_workload, without_pods

from kvserving_operator.control.facts import Facts, Transfer
from kvserving_operator.control.failures import Problem
from kvserving_operator.control.pods import PodState
from kvserving_operator.reasons import Reason

UNPROVED = Transfer("Unknown", Reason.STARTING, "no ready pod of every role to probe")
UNREACHABLE = Transfer("False", Reason.ENGINE_UNREACHABLE, "decode d does not answer")
TOLD_FIRST = ("Ready", "Progressing", "Reconciling")


def not_ready(found: Facts, role: str, **changes: Any) -> tuple[Facts, str]:
    """``found`` with the pods of a role not ready, and the name of the first."""
    there = [replace(pod, ready=False, **changes) for pod in found.view.pods if pod.role == role]
    return with_pods(found, *there), there[0].name


FAILING: dict[str, Any] = {"failing": "CrashLoopBackOff", "failing_message": "container engine: exit code 137"}
ENDED: dict[str, Any] = {"last_end": "container engine ended with exit code 137 and is started again"}


@pytest.mark.parametrize("transfer", [UNPROVED, UNREACHABLE], ids=["not probed", "probed meanwhile"])
@pytest.mark.parametrize(
    ("changes", "reason", "said"),
    [
        (FAILING, Reason.POD_FAILING, "CrashLoopBackOff (container engine: exit code 137)"),
        (ENDED, Reason.LOADING_MODEL, "container engine ended with exit code 137 and is started again"),
        ({}, Reason.LOADING_MODEL, "the engine loads the model, or does not answer"),
    ],
    ids=["ends again and again", "ended once", "does not answer"],
)
@pytest.mark.parametrize(("role", "name"), [("prefill", "PrefillReady"), ("decode", "DecodeReady")])
def test_an_engine_that_is_not_ready_is_told_before_the_transfer_that_it_cannot_make(
    role: str, name: str, changes: dict[str, Any], reason: Reason, said: str, transfer: Transfer
) -> None:
    made, pod = not_ready(facts(transfer=transfer), role, **changes)
    # Without engines the routers are not ready either.
    made, _ = not_ready(made, "router")
    found = by_type(made)
    for told in TOLD_FIRST:
        assert found[told].reason is reason, told
        assert found[told].message.startswith(f"{name}: 0 of "), told
        assert found[told].message.endswith(f"pod {pod}: {said}"), told
    assert found["TransferVerified"].reason is transfer.reason


@pytest.mark.parametrize("of", [{}, {"last_end": "container router ended with exit code 1 and is started again"}])
def test_a_router_that_is_not_ready_is_told_before_the_transfer(of: dict[str, str]) -> None:
    made, pod = not_ready(facts(transfer=UNPROVED), "router", **of)
    found = by_type(made)
    for told in TOLD_FIRST:
        assert found[told].message.startswith("RouterReady: 0 of 2 router pods are ready: pod "), told
        assert f"pod {pod}: " in found[told].message, told


def test_a_router_that_fails_beside_ready_engines_is_the_cause() -> None:
    made, _ = not_ready(facts(transfer=UNPROVED), "router", **FAILING)
    assert by_type(made)["Ready"].reason is Reason.POD_FAILING
    assert by_type(made)["Ready"].message.startswith("RouterReady: ")


def test_an_engine_that_fails_is_told_before_one_that_loads() -> None:
    made, _ = not_ready(facts(transfer=UNPROVED), "prefill")
    made, pod = not_ready(made, "decode", **FAILING)
    found = by_type(made)
    assert found["Ready"].reason is found["Degraded"].reason is Reason.POD_FAILING
    assert f"pod {pod}" in found["Ready"].message
    assert found["Progressing"].reason is Reason.LOADING_MODEL


def test_an_engine_that_fails_is_progress_neither_with_a_transfer_nor_without() -> None:
    made, _ = not_ready(facts(transfer=UNPROVED), "decode", **FAILING)
    alone, _ = not_ready(
        facts(spec={name: of for name, of in SPEC.items() if name != "prefill"}, transfer=None), "decode", **FAILING
    )
    for found in (by_type(made), by_type(alone)):
        assert (found["Reconciling"].status, found["Reconciling"].reason) == ("False", Reason.POD_FAILING)
        assert (found["Degraded"].status, found["Degraded"].reason) == ("True", Reason.POD_FAILING)


def test_a_transfer_at_fault_is_told_behind_a_role_that_starts_and_not_hidden_by_it() -> None:
    recomputed = Transfer("False", Reason.RECOMPUTING_KV, "decode d computed all tokens again")
    one, *_ = (pod for pod in facts().view.pods if pod.role == "decode")
    degraded = by_type(with_pods(facts(transfer=recomputed), replace(one, ready=False, **ENDED)))["Degraded"]
    assert (degraded.status, degraded.reason) == ("True", Reason.RECOMPUTING_KV)
    assert degraded.message.startswith(f"DecodeReady: 1 of 2 decode pods are ready: pod {one.name}: container engine")
    assert degraded.message.endswith("; TransferVerified: decode d computed all tokens again")


def test_with_every_role_ready_the_transfer_is_the_cause() -> None:
    found = by_type(facts(transfer=UNREACHABLE))
    assert found["Ready"].message == "TransferVerified: decode d does not answer"
    assert found["Degraded"].message == "TransferVerified: decode d does not answer"


def test_a_pod_that_ended_is_named_before_one_that_only_starts() -> None:
    starts, ended = [pod for pod in facts().view.pods if pod.role == "decode"]
    pods: list[PodState] = [replace(starts, ready=False), replace(ended, ready=False, **ENDED)]
    assert f"pod {ended.name}: container engine ended" in by_type(with_pods(facts(), *pods))["DecodeReady"].message


@pytest.mark.parametrize("reason", [Reason.OWNED_BY_OTHER, Reason.APPLY_FAILED, Reason.FORBIDDEN])
def test_what_no_waiting_mends_is_told_before_engines_that_load(reason: Reason) -> None:
    made, _ = not_ready(facts(transfer=UNPROVED), "decode")
    found = by_type(replace(made, problems={("Service", "qwen"): Problem(reason, "the name is taken")}))
    for told in ("Ready", "Stalled", "Degraded"):
        assert (found[told].reason, found[told].message) == (reason, "Service qwen: the name is taken"), told


@pytest.mark.parametrize(
    ("changes", "stalled"),
    [
        ({"failing": "ImagePullBackOff"}, True),
        ({"failing": "InvalidImageName"}, True),
        ({"failing": "CrashLoopBackOff", "restarts": 2}, True),
        ({"failing": "CrashLoopBackOff", "restarts": 1}, False),
        ({"failing": "CrashLoopBackOff", "retries": 2}, True),
        ({"failing": "CrashLoopBackOff", "told": True}, True),
    ],
)
def test_a_pod_that_fails_for_good_blocks_progress(changes: dict[str, Any], stalled: bool) -> None:
    made, _ = not_ready(facts(transfer=UNPROVED), "decode", **changes)
    found = by_type(made)
    assert found["Ready"].reason is Reason.POD_FAILING
    assert found["Stalled"].holds == stalled
    assert found["Stalled"].reason is Reason.POD_FAILING
    assert found["Stalled"].message.startswith("it may go on by itself: ") != stalled
    assert found["Reconciling"].status == "False"


@pytest.mark.parametrize(
    "said", ["the model's folder /m is not there: correct spec.model.uri", "vLLM refuses its command line: --no-such"]
)
@pytest.mark.parametrize("init", [False, True], ids=["engine", "init container"])
def test_what_our_code_says_is_lacking_blocks_progress_from_its_first_end_on(said: str, init: bool) -> None:
    made = facts(transfer=UNPROVED)
    [name, *_] = [there.name for there in made.view.pods if there.role == "decode"]
    end = {"terminated": {"exitCode": 1, "message": f"KVServing: {said}"}}
    once = {"name": "engine", "ready": False, "restartCount": 1, "state": {"running": {}}, "lastState": end}
    told: dict[str, Any] = {"initContainerStatuses" if init else "containerStatuses": [once]}
    found = by_type(with_pods(made, pod(name, "decode", made.revision, ready=False, **told)))
    for kind in ("Stalled", "Degraded"):
        assert (found[kind].status, found[kind].reason) == ("True", Reason.POD_FAILING), kind
        assert said in found[kind].message


def test_pods_that_a_policy_refuses_block_progress() -> None:
    refused = (("ReplicaFailure", "True", "FailedCreate", "pods is forbidden: violates PodSecurity"),)
    found = by_type(without_pods(with_workload(facts(), "decode", ready=0, conditions=refused), "decode"))
    assert (found["Stalled"].status, found["Stalled"].reason) == ("True", Reason.POD_FAILING)


def test_a_router_waits_for_engines_where_none_takes_requests() -> None:
    made, _ = not_ready(facts(transfer=UNPROVED), "decode")
    made, _ = not_ready(made, "router")
    assert by_type(made)["RouterReady"].message.endswith("it waits for engines, of which none takes requests")


@pytest.mark.parametrize(
    ("key", "message", "said"),
    [
        (("Secret", "hub"), "Secret prod/hub (spec.model.secretRef) is not there", ""),
        (("Service", "qwen"), "Service prod/qwen exists and belongs to no controller", ""),
        (("Secret", "hub"), "Secret prod/hub-2 is not there", "Secret hub: "),
        (("Service", "qwen"), "the name is taken", "Service qwen: "),
    ],
)
def test_what_is_at_fault_is_named_once(key: tuple[str, str], message: str, said: str) -> None:
    made, _ = not_ready(facts(transfer=UNPROVED), "decode")
    found = by_type(replace(made, problems={key: Problem(Reason.OWNED_BY_OTHER, message)}))
    for told in ("Ready", "Stalled", "Degraded"):
        assert found[told].message == f"{said}{message}", told


def test_a_secret_that_a_roles_pods_need_is_its_cause() -> None:
    made, _ = not_ready(facts(transfer=UNPROVED, spec={**SPEC, "router": {"apiKeySecretRef": "clients"}}), "router")
    missing = Problem(Reason.SECRET_MISSING, "Secret prod/clients is not there", retry_after=5.0)
    found = by_type(replace(made, problems={("Secret", "clients"): missing}))
    assert (found["RouterReady"].reason, found["RouterReady"].message) == (missing.reason, missing.message)
    assert found["DecodeReady"].holds
    for told in ("Ready", "Stalled", "Degraded"):
        assert found[told].reason is Reason.SECRET_MISSING, told
