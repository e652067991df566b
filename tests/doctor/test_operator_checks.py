"""Whether an operator looks after an object, and what is told and advised while none does."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.doctor.apiserver import Apiserver
from tests.doctor.commands import kubectl
from tests.doctor.world import env, found, healthy, operator, spoiled, with_child

from kvserving_operator import __version__, times
from kvserving_operator.doctor import checks
from kvserving_operator.doctor.facts import ObjectFacts, Operators
from kvserving_operator.doctor.gather_object import holding

FACTS = healthy()
assert FACTS.live is not None
LIVE = FACTS.live
OWN = ("kvserving-system", "kvserving-operator")


def having(facts: ObjectFacts, *deployments: Any, held: frozenset[tuple[str, str]] | None = frozenset()) -> ObjectFacts:
    return spoiled(facts, operators=Operators(deployments, held))


def behind(facts: ObjectFacts) -> ObjectFacts:
    assert facts.live is not None
    return spoiled(facts, body={**facts.live.body, "metadata": {**facts.live.body["metadata"], "generation": 2}})


def changed(facts: ObjectFacts) -> ObjectFacts:
    """An engine's Deployment has a variable and the router's Service a port that are not planned."""
    return with_child(
        with_child(facts, "Deployment", "decode", lambda c: env(c, "NCCL_DEBUG", "INFO")),
        "Service", "router", lambda c: c["metadata"].update(managedFields=[]),
    )  # fmt: skip


def serving(*args: str, available: int = 1, name: str = "op") -> dict[str, Any]:
    return operator(name, __version__, available, *args)


def test_the_first_word_about_an_object_is_that_no_operator_runs() -> None:
    told = checks.of_object(behind(having(FACTS)))
    assert [finding.check for finding in told] == ["operator-missing", "status-behind"]
    assert told[0].what == "no operator of namespace prod runs: the cluster has no Deployment of one"
    assert "`kubectl apply --server-side -f deploy/install.yaml`" in told[0].fix
    assert told[1].fix.startswith("start an operator")
    new = spoiled(having(FACTS), body={**LIVE.body, "status": {}})
    assert found(new)["not-reconciled"].fix.startswith("start an operator")


def test_what_the_owner_changed_and_no_operator_took_up_is_not_called_a_change_of_others() -> None:
    assert {"workload-changed", "child-changed"} <= set(found(changed(FACTS)))
    for facts in (behind(changed(FACTS)), behind(having(changed(FACTS)))):
        assert not {"workload-changed", "child-changed"} & set(found(facts))


def test_nothing_is_to_be_deleted_while_no_operator_runs_that_makes_it_anew() -> None:
    def aside(child: Any) -> Any:
        pods = copy.deepcopy(LIVE.pods)
        pods[0]["metadata"]["ownerReferences"] = []
        return spoiled(child, pods=pods)

    for check in ("workload-changed", "child-changed", "pod-aside"):
        assert "kubectl delete" in found(aside(changed(FACTS)))[check].fix
        alone = found(having(aside(changed(FACTS))))[check].fix
        assert alone
        assert "kubectl delete" not in alone
    assert "take NCCL_DEBUG out" in found(having(changed(FACTS)))["workload-changed"].fix


def test_what_the_operator_would_make_waits_for_it() -> None:
    without = spoiled(FACTS, children=tuple(c for c in LIVE.children if c["kind"] != "Service"))
    assert "conditions say why" in found(without)["child-missing"].fix
    assert found(having(without))["child-missing"].fix.startswith("start an operator")
    assert "has not taken up generation 2" in found(behind(without))["child-missing"].fix
    keyless = spoiled(FACTS, secrets={**(LIVE.secrets or {}), "qwen-keys": None})
    assert "delete one that lacks a key" in found(keyless)["secret-missing"].fix
    assert found(having(keyless))["secret-missing"].fix.startswith("start an operator")


def test_an_operator_of_other_namespaces_is_none_and_one_without_pods_is_down() -> None:
    other = found(having(FACTS, serving("--namespace=team-a"), held=frozenset({OWN})))
    assert "Deployment kvserving-system/op serves team-a alone" in other["operator-missing"].what
    assert "add prod to the value namespaces" in other["operator-missing"].fix
    down = found(having(FACTS, serving("--namespace=prod", available=0)))
    assert "Deployment kvserving-system/op has no pod that is available" in down["operator-down"].what
    stopped = serving(available=0)
    stopped["spec"]["replicas"] = 0
    told = found(having(FACTS, stopped))["operator-down"]
    assert "is scaled to no pods" in told.what
    assert "kubectl scale deployment/op -n kvserving-system --replicas=2" in told.fix


def test_two_operators_of_an_objects_namespace_are_told_of_the_object_and_those_of_others_are_not() -> None:
    told = found(having(FACTS, serving(), serving("--namespace=prod", name="second")))["several-operators"]
    assert "serves all namespaces and Deployment kvserving-system/second serves prod" in told.what
    assert "several-operators" not in found(having(FACTS, serving(), serving("--namespace=team-b", name="second")))


def test_whoever_holds_a_lease_runs_and_what_may_not_be_read_is_not_judged() -> None:
    assert found(having(FACTS, held=frozenset({("default", "kvserving-operator")}))) == {}
    assert found(spoiled(FACTS, operators=None)) == {}
    assert "unless one runs outside of the cluster" in found(having(FACTS, held=None))["operator-missing"].what


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ({}, True),
        ({"holderIdentity": ""}, False),
        ({"renewTime": times.exact_stamp(datetime.now(UTC) - timedelta(minutes=10))}, False),
        ({"renewTime": None}, False),
    ],
)
def test_a_lease_is_held_until_it_runs_out_or_is_given_back(changes: dict[str, Any], *, holds: bool) -> None:
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": times.exact_stamp(datetime.now(UTC))}
    lease = {"metadata": {"namespace": OWN[0], "name": OWN[1]}, "spec": {**spec, **changes}}
    assert holding(lease) == (OWN if holds else None)
    assert holding({**lease, "metadata": {"namespace": "kube-node-lease", "name": "node-1"}}) is None


def test_doctor_of_an_object_asks_the_cluster_for_operators(
    server: Apiserver, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("doctor", "qwen", "--only", "findings")
    assert kubectl(*asked) == 0
    assert "operator-missing" not in capsys.readouterr().out
    server.objects["deployments"].pop()
    assert kubectl(*asked) == 1
    assert "no operator of namespace prod runs" in capsys.readouterr().out
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": times.exact_stamp(datetime.now(UTC))}
    server.objects["leases"] = [{"metadata": {"namespace": OWN[0], "name": OWN[1]}, "spec": spec}]
    assert kubectl(*asked) == 0
    server.forbidden.add("list leases")
    assert kubectl(*asked) == 1
    assert "unless one runs outside of the cluster" in " ".join(capsys.readouterr().out.split())
