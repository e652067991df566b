"""What is told of the namespace of an object: what it refuses its pods and claims."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doctor.world import CLASS, SPEC, found, healthy, spoiled
from tests.plan.support import edited

from kvserving_operator.doctor.checks.namespace import ENFORCED
from kvserving_operator.doctor.facts import Live, ObjectFacts
from kvserving_operator.doctor.findings import Severity

FACTS = healthy()
ERROR, WARNING = Severity.ERROR, Severity.WARNING
PLAIN = edited(SPEC, "transfer", {})
"""Without RDMA."""
SHARED = edited(SPEC, "model.cache", {"size": "100Gi", "storageClass": "shared"})


def live(facts: ObjectFacts) -> Live:
    assert facts.live is not None
    return facts.live


def namespace(level: str) -> dict[str, Any]:
    return {"metadata": {"name": "prod", "labels": {ENFORCED: level}}}


def quota(**hard: str) -> dict[str, Any]:
    return {"metadata": {"name": "team"}, "spec": {"hard": {name.replace("_", "."): v for name, v in hard.items()}}}


def ranges(kind: str = "Container", **entry: Any) -> dict[str, Any]:
    return {"metadata": {"name": "bounds"}, "spec": {"limits": [{"type": kind, **entry}]}}


def unlimited(facts: ObjectFacts) -> bool:
    """Whether an engine of the plan has no memory limit."""
    assert facts.plan is not None
    engines = [m for m in facts.plan.objects if m["kind"] == "Deployment" and "decode" in m["metadata"]["name"]]
    return "memory" not in engines[0]["spec"]["template"]["spec"]["containers"][0]["resources"].get("limits", {})


@pytest.mark.parametrize(
    ("facts", "changes", "check", "severity", "where", "what"),
    [
        (FACTS, {"namespace": namespace("baseline")}, "pod-security", ERROR, "qwen-", "capability IPC_LOCK"),
        (FACTS, {"namespace": namespace("restricted")}, "pod-security", ERROR, "qwen-", "capability IPC_LOCK"),
        (FACTS, {"quotas": (quota(pods="4"),)}, "quota-small", ERROR, "ResourceQuota team", "pods 5 (of 4)"),
        (
            FACTS, {"quotas": ({**quota(), "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}},)},
            "quota-small", ERROR, "ResourceQuota team", "requests.nvidia.com/gpu 2 (of 1)",
        ),
        (FACTS, {"quotas": (quota(limits_cpu="900"),)}, "quota-needs-resources", ERROR, "qwen-", "limits.cpu"),
        (FACTS, {"ranges": (ranges(max={"memory": "1Gi"}),)}, "limit-range", ERROR, "LimitRange", "(at most 1Gi)"),
        (
            healthy(SHARED), {"ranges": (ranges("PersistentVolumeClaim", max={"storage": "10Gi"}),)},
            "limit-range", ERROR, "LimitRange bounds", "100Gi (at most 10Gi)",
        ),
        (FACTS, {"absent": frozenset({"NetworkPolicy"})}, "kind-missing", ERROR, "NetworkPolicy", "the cluster has no"),
        (
            healthy(SHARED), {"classes": (CLASS,), "children": ()},
            "class-missing", WARNING, "PersistentVolumeClaim", "no storage class shared",
        ),
    ],
)  # fmt: skip
def test_what_a_namespace_refuses_is_told_with_the_way_out(
    facts: ObjectFacts, changes: dict[str, Any], check: str, severity: Severity, where: str, what: str
) -> None:
    told = found(spoiled(facts, **changes))
    assert check in told, sorted(told)
    assert told[check].severity is severity
    assert where in told[check].where
    assert what in told[check].what
    assert told[check].why
    assert told[check].fix


def test_a_default_limit_that_is_less_than_an_engine_needs_is_an_error() -> None:
    facts = healthy(edited(PLAIN, "cache", {}))
    small, large = ranges(default={"memory": "4Gi"}), ranges(default={"memory": "64Gi"})
    assert unlimited(facts)
    told = found(spoiled(facts, ranges=(small,)))["limit-range-default"]
    assert (told.severity, told.where) == (ERROR, "LimitRange bounds")
    assert "4Gi of memory" in told.what
    assert "limit-range-default" not in found(spoiled(facts, ranges=(large,)))


@pytest.mark.parametrize(
    ("facts", "changes"),
    [
        (healthy(PLAIN), {"namespace": namespace("restricted")}),
        (FACTS, {"namespace": namespace("privileged")}),
        (FACTS, {"namespace": {"metadata": {"name": "prod"}}}),
        (FACTS, {"quotas": (quota(pods="5"),)}),
        (FACTS, {"quotas": ({**quota(), "spec": {"hard": {"pods": "1"}, "scopes": ["BestEffort"]}},)}),
        (FACTS, {"quotas": (quota(limits_cpu="900"),), "ranges": (ranges(default={"cpu": "4"}),)}),
        (FACTS, {"ranges": (ranges(max={"memory": "900Gi"}),)}),
        (healthy(SHARED), {"classes": (CLASS, {"metadata": {"name": "shared"}})}),
        (healthy(SHARED), {"classes": (CLASS,)}),
    ],
    ids=[
        "pods without rdma keep to restricted", "privileged", "no standard", "a quota that holds it",
        "a quota of some pods", "a default fills in", "a wide range", "a class that is there", "a claim that is there",
    ],
)  # fmt: skip
def test_what_a_namespace_takes_is_let_be(facts: ObjectFacts, changes: dict[str, Any]) -> None:
    unwanted = {"pod-security", "quota-small", "quota-needs-resources", "limit-range", "class-missing"}
    assert not unwanted & set(found(spoiled(facts, **changes)))


@pytest.mark.parametrize(
    ("template", "refused"),
    [
        ({"hostNetwork": True}, "hostNetwork"),
        ({"volumes": [{"name": "models", "hostPath": {"path": "/models"}}]}, "hostPath models"),
        ({"containers": [{"name": "engine", "securityContext": {"privileged": True}}]}, "privileged in engine"),
        (
            {"containers": [{"name": "engine", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]},
            "SYS_ADMIN",
        ),
        ({"securityContext": {"runAsNonRoot": False, "runAsUser": 0}}, "root in engine"),
    ],
)
def test_what_a_template_adds_is_held_against_the_standard(template: dict[str, Any], refused: str) -> None:
    facts = healthy(edited(PLAIN, "decode.template", {"spec": template}))
    told = found(spoiled(facts, namespace=namespace("restricted")))["pod-security"]
    assert "-decode-" in told.where
    assert refused in told.what


def test_a_pull_secret_that_is_not_there_is_told() -> None:
    facts = healthy(edited(SPEC, "decode.template", {"spec": {"imagePullSecrets": [{"name": "registry"}]}}))
    secrets = {**(live(facts).secrets or {}), "registry": None}
    told = found(spoiled(facts, secrets=secrets))["secret-missing"]
    assert told.where == "Secret registry"
    assert "--type=kubernetes.io/dockerconfigjson --from-file=.dockerconfigjson" in told.fix
