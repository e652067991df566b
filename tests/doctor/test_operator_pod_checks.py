"""What is told of an operator's pods: exit codes in words, a CRD that is missing, pods that were started again."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doctor.test_cluster_checks import OLD, of_cluster, pod_of, upgraded

from kvserving_operator.control.exit_codes import ExitCode
from kvserving_operator.doctor.checks.operator_pods import CODES
from kvserving_operator.doctor.findings import Severity


def crashing(code: int) -> dict[str, Any]:
    made = pod_of("op-1", "9.9.9", waiting="CrashLoopBackOff")
    [container] = made["status"]["containerStatuses"]
    container |= {"restartCount": 3, "lastState": {"terminated": {"exitCode": code, "reason": "Error"}}}
    return made


def again(code: int, **end: Any) -> dict[str, Any]:
    """A pod that is ready, and was started again after it had ended."""
    made = pod_of("op-1", "9.9.9")
    [container] = made["status"]["containerStatuses"]
    container |= {"restartCount": 2, "ready": True, "lastState": {"terminated": {"exitCode": code, **end}}}
    return made


def test_a_missing_crd_is_named_as_the_cause_of_an_operator_that_does_not_run() -> None:
    told = of_cluster(kinds=frozenset(), operators=(upgraded(0, release="kv"),), pods=(crashing(5),))
    assert "went" not in told["crd-missing"].what
    assert "its objects and all that was made for them" in told["crd-missing"].why
    down = told["operator-down"]
    assert "the CRD is missing; pod op-1: CrashLoopBackOff container operator: exit code 5 (the apiserver" in down.what
    assert "what runs goes on" not in down.why
    assert "as crd-missing says" in down.fix
    assert "rollback" not in down.fix


@pytest.mark.parametrize(
    ("code", "meaning", "way_out"),
    [(3, "permissions are missing", "apply the RBAC"), (5, "the CRD is not installed", "reach the apiserver")],
)
def test_an_exit_code_of_the_operator_is_told_in_words(code: int, meaning: str, way_out: str) -> None:
    down = of_cluster(operators=(upgraded(0, release="kv"),), pods=(crashing(code),))["operator-down"]
    assert f"exit code {code} (" in down.what
    assert meaning in down.what
    assert way_out in down.fix
    assert "rollback" not in down.fix


def test_every_exit_code_of_a_fault_has_its_words() -> None:
    assert {code for code in ExitCode if code is not ExitCode.STOPPED} <= set(CODES)


def test_an_upgrade_is_taken_back_only_where_there_was_one() -> None:
    first = upgraded(0, release="kv")
    first["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "1"
    assert "rollback" not in of_cluster(operators=(first,), pods=(crashing(9),))["operator-down"].fix
    first["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "2"
    assert "if an upgrade brought it, `helm rollback kv" in (
        of_cluster(operators=(first,), pods=(crashing(9),))["operator-down"].fix
    )


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        (again(5, finishedAt="2026-01-01T00:00:00Z"), "exit code 5 (the apiserver cannot be reached, or the CRD"),
        (again(137, reason="OOMKilled"), "exit code 137 (OOMKilled)"),
        (again(137), "exit code 137 (it was killed: for memory, by a probe or with its node)"),
        (again(0), "exit code 0"),
    ],
)
def test_an_operator_that_was_started_again_is_told_with_its_last_end(pod: dict[str, Any], said: str) -> None:
    found = of_cluster(operators=(upgraded(),), pods=(pod, *OLD))["operator-restarted"]
    assert found.severity is Severity.WARNING
    assert f"pod op-1: container operator was started again 2 times, the last time after {said}" in found.what
    assert "kubectl logs op-1 -n kvserving-system --previous" in found.fix
    assert "operator-restarted" not in of_cluster(operators=(upgraded(),), pods=OLD)
