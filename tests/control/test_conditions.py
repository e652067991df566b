from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.control.bodies import SPEC, children, planned, pod, pods_of, stored, view

from kvserving_operator.api.faults import Fault
from kvserving_operator.api.status import KVServingStatus
from kvserving_operator.control import status
from kvserving_operator.control.conditions import TYPES, conditions
from kvserving_operator.control.facts import Condition, Facts, Transfer
from kvserving_operator.control.failures import Problem
from kvserving_operator.control.pods import PodState
from kvserving_operator.control.workloads import Workload
from kvserving_operator.reasons import Reason

VERIFIED = Transfer("True", Reason.VERIFIED, "proved")


def facts(*pods: Any, ready: bool = True, spec: dict[str, Any] | None = None, **changes: Any) -> Facts:
    serving = stored(spec)
    reading, there = planned(serving), children(serving, ready=ready)
    assert reading.plan is not None, reading.faults
    made = Facts(
        view=view(serving, there, *pods_of(there), *pods),
        plan=reading.plan,
        revision=reading.plan.revision,
        disaggregated=reading.serving is not None and reading.serving.spec.prefill is not None,
        routed=True,
        suspended=False,
        transfer=VERIFIED,
    )
    return replace(made, **changes)


def by_type(found: Facts) -> dict[str, Condition]:
    return {condition.type: condition for condition in conditions(found)}


def with_workload(found: Facts, role: str, **changes: Any) -> Facts:
    changed = {}
    for identity, child in found.view.children.items():
        if child.workload is not None and child.role == role:
            child = replace(child, workload=replace(child.workload, **changes))
        changed[identity] = child
    return replace(found, view=view(found.view.serving, changed, *found.view.pods))


def with_pods(found: Facts, *pods: PodState) -> Facts:
    """Further pods, each in the place of one of its name."""
    there = {pod.name: pod for pod in (*found.view.pods, *pods)}
    return replace(found, view=view(found.view.serving, dict(found.view.children), *there.values()))


def without_pods(found: Facts, *roles: str) -> Facts:
    """Pods that are gone, before anything else tells."""
    left = [pod for pod in found.view.pods if pod.role not in roles]
    return replace(found, view=view(found.view.serving, dict(found.view.children), *left))


def test_everything_ready_is_ready_and_settled() -> None:
    found = by_type(facts())
    assert {name: c.status for name, c in found.items()} == {
        "Ready": "True", "Available": "True", "Progressing": "False", "Degraded": "False", "ConfigValid": "True",
        "PrefillReady": "True", "DecodeReady": "True", "RouterReady": "True", "StorageReady": "True",
        "TransferVerified": "True", "Reconciling": "False", "Stalled": "False",
    }  # fmt: skip


def test_every_type_is_documented_and_conditions_come_in_that_order() -> None:
    names = [condition.type for condition in conditions(facts())]
    assert names == [name for name in TYPES if name in names]


def test_what_the_plan_wants_known_is_told_with_the_valid_spec() -> None:
    found = by_type(facts(spec={**SPEC, "model": {"uri": "hf://example/unknown"}}))
    assert found["ConfigValid"].holds
    assert "spec.model.facts: nothing is known about hf://example/unknown" in found["ConfigValid"].message


def test_loading_engines_are_progress_and_no_degradation() -> None:
    found = by_type(with_workload(facts(transfer=Transfer("Unknown", Reason.STARTING, "-")), "decode", ready=1))
    assert (found["Ready"].status, found["Ready"].reason) == ("False", Reason.LOADING_MODEL)
    assert found["Progressing"].holds
    assert found["Reconciling"].holds
    assert not found["Degraded"].holds
    assert found["DecodeReady"].message.startswith("1 of 2 decode pods are ready")


def test_recomputing_degrades_but_serves() -> None:
    found = by_type(facts(transfer=Transfer("False", Reason.RECOMPUTING_KV, "decode d computed all tokens again")))
    assert (found["Ready"].status, found["Ready"].reason) == ("False", Reason.RECOMPUTING_KV)
    assert (found["Degraded"].status, found["Degraded"].reason) == ("True", Reason.RECOMPUTING_KV)
    assert found["Available"].holds
    assert not found["Stalled"].holds


def test_an_invalid_spec_is_stalled_and_leaves_available_alone() -> None:
    found = by_type(facts(plan=None, faults=(Fault("spec.engine.version", "too old"),)))
    assert found["ConfigValid"].reason == Reason.INVALID_SPEC
    assert found["Ready"].reason == Reason.INVALID_SPEC
    assert found["Stalled"].holds
    assert found["Available"].holds
    assert not found["Reconciling"].holds


def test_a_foreign_object_degrades_and_stalls() -> None:
    problem = Problem(Reason.OWNED_BY_OTHER, "Service prod/qwen exists and belongs to no controller")
    found = by_type(facts(problems={("Service", "qwen"): problem}))
    assert found["Degraded"].reason == Reason.OWNED_BY_OTHER
    assert "belongs to no controller" in found["Degraded"].message
    assert found["RouterReady"].reason == Reason.OWNED_BY_OTHER
    assert found["Ready"].reason == Reason.OWNED_BY_OTHER
    assert found["Stalled"].holds


@pytest.mark.parametrize(
    ("pod_status", "reason"),
    [
        (
            {"containerStatuses": [{"name": "engine", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]},
            Reason.POD_FAILING,
        ),
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "Insufficient nvidia.com/gpu",
                    }
                ]
            },
            Reason.INSUFFICIENT_CAPACITY,
        ),
    ],
)
def test_a_role_that_is_not_ready_says_why(pod_status: dict[str, Any], reason: Reason) -> None:
    made = with_workload(facts(), "decode", ready=1)
    broken = pod("qwen-decode-x", "decode", made.revision, ready=False, **pod_status)
    found = by_type(with_pods(made, broken))
    assert found["DecodeReady"].reason == reason
    assert "qwen-decode-x" in found["DecodeReady"].message
    assert found["Degraded"].reason == reason


def test_an_engine_that_is_started_again_does_not_look_like_a_first_start() -> None:
    made = with_workload(facts(), "decode", ready=1)
    ended = {"name": "engine", "restartCount": 1, "ready": False, "lastState": {"terminated": {"exitCode": 137}}}
    again = pod("qwen-decode-x", "decode", made.revision, ready=False, containerStatuses=[ended])
    found = by_type(with_pods(made, again))
    assert found["DecodeReady"].reason is Reason.LOADING_MODEL
    assert "pod qwen-decode-x: container engine ended with exit code 137" in found["DecodeReady"].message


def test_a_quota_on_pods_is_told_without_the_changing_name_of_the_pod() -> None:
    message = 'pods "qwen-decode-1-abcde" is forbidden: exceeded quota: small, limited: pods=2'
    made = with_workload(facts(), "decode", ready=0, conditions=(("ReplicaFailure", "True", "FailedCreate", message),))
    found = by_type(made)
    assert found["DecodeReady"].reason == Reason.QUOTA_EXCEEDED
    assert "abcde" not in found["DecodeReady"].message
    assert "limited: pods=2" in found["DecodeReady"].message


def test_a_child_of_no_role_that_cannot_be_made_keeps_the_object_from_being_ready() -> None:
    made = facts()
    name = next(name for kind, name in made.view.children if kind == "NetworkPolicy")
    found = by_type(replace(made, problems={("NetworkPolicy", name): Problem(Reason.FORBIDDEN, "forbidden")}))
    assert (found["Ready"].status, found["Ready"].reason) == ("False", Reason.FORBIDDEN)
    assert found["DecodeReady"].holds
    assert found["Available"].holds


def test_a_missing_optional_kind_degrades_and_does_no_more() -> None:
    found = by_type(
        facts(problems={("PodMonitor", "qwen-engines"): Problem(Reason.KIND_MISSING, "no CRD", again=False)})
    )
    assert found["Ready"].holds
    assert found["Degraded"].reason == Reason.KIND_MISSING


def test_a_missed_deadline_is_a_failed_rollout() -> None:
    made = with_workload(
        facts(), "decode", ready=1, conditions=(("Progressing", "False", "ProgressDeadlineExceeded", "late"),)
    )
    assert by_type(made)["Stalled"].reason == Reason.ROLLOUT_FAILED


def test_a_workload_whose_newest_spec_is_not_seen_yet_is_not_ready() -> None:
    assert not by_type(with_workload(facts(), "router", current=False))["RouterReady"].holds


def test_aggregated_mode_has_neither_prefill_nor_transfer() -> None:
    spec = {key: value for key, value in SPEC.items() if key != "prefill"}
    found = by_type(facts(spec=spec, transfer=None))
    assert not {"PrefillReady", "TransferVerified"} & set(found)
    assert found["Ready"].holds


def test_a_former_revision_that_serves_keeps_the_object_available() -> None:
    made = facts()
    former = {
        (kind, f"old-{name}"): replace(child, name=f"old-{name}", revision="f" * 16, uid=f"old-{child.uid}")
        for (kind, name), child in made.view.children.items()
        if child.workload is not None
    }
    coming = without_pods(with_workload(made, "decode", ready=0), "decode")
    both = view(coming.view.serving, {**coming.view.children, **former}, *coming.view.pods, *pods_of(former))
    found = by_type(replace(coming, view=both))
    assert (found["Available"].status, found["Available"].reason) == ("True", Reason.ROLLING_OUT)
    assert not found["Ready"].holds
    assert found["Progressing"].holds
    roles = document(replace(coming, view=both))["roles"]
    assert {role: said["summary"] for role, said in roles.items()} == {"prefill": "2/1", "decode": "2/2"}


def document(made: Facts, **changes: Any) -> dict[str, Any]:
    reading = planned(made.view.serving)
    return status.document(made, conditions(made), reading.serving, now=changes.get("now", "2026-01-01T00:00:00Z"))


def test_the_status_has_the_form_of_the_api() -> None:
    found = document(facts())
    parsed = KVServingStatus.model_validate(found)
    assert parsed.model_dump(mode="json", by_alias=True, exclude_none=True) | {"errors": []} == found | {"errors": []}
    assert found["roles"] == {
        "prefill": {"replicas": 1, "ready": 1, "summary": "1/1"},
        "decode": {"replicas": 2, "ready": 2, "summary": "2/2"},
    }
    assert found["transfer"] == "Verified"
    assert found["url"] == "http://qwen.prod.svc:80"
    assert found["observedGeneration"] == 1


def test_an_unchanged_status_is_not_written_again_later() -> None:
    first = document(facts())
    again = facts()
    again = replace(again, view=view(stored(status=first), dict(again.view.children), *again.view.pods))
    second = document(again, now="2026-01-02T00:00:00Z")
    assert not status.changed(first, second)
    assert {c["lastTransitionTime"] for c in second["conditions"]} == {"2026-01-01T00:00:00Z"}


def test_only_the_conditions_that_changed_get_a_new_time() -> None:
    first = document(facts())
    made = with_workload(facts(), "decode", ready=0)
    made = replace(made, view=view(stored(status=first), dict(made.view.children), *made.view.pods))
    second = document(made, now="2026-01-02T00:00:00Z")
    assert status.changed(first, second)
    times = {c["type"]: c["lastTransitionTime"] for c in second["conditions"]}
    assert times["DecodeReady"] == "2026-01-02T00:00:00Z"
    assert times["PrefillReady"] == "2026-01-01T00:00:00Z"


def test_faults_that_quote_env_args_or_templates_are_masked() -> None:
    token = "private-value-123"  # no token of anybody's
    spec = {
        "engine": {"env": [{"name": "A", "value": token}], "args": [f"--x={token}"]},
        "decode": {"template": {"spec": {"nodeName": token}}},
    }
    faults = (Fault("spec.engine.args", f"--x={token} is ours"), Fault("spec.decode", "0.19.0 is too old"))
    shown = status.public(faults, spec)
    assert token not in str(shown)
    assert "0.19.0 is too old" in str(shown)


@pytest.mark.parametrize(
    "value", ["x" * 723, 'one"quoted"two', "line one is long\nline two is longer", "tab\there and there"]
)
def test_values_of_the_environment_are_masked_however_a_message_quotes_them(value: str) -> None:
    clean = status.cleaner({"decode": {"env": [{"name": "A", "value": value}]}})
    for quoted in (value, json.dumps(value), f"{value.splitlines()[-1]}"):
        shown = clean(f"a policy refuses {quoted}")
        assert all(part not in shown for part in value.split() if len(part) > 5)
        assert "a policy refuses" in shown


def test_a_pod_of_a_former_template_that_still_runs_is_no_finished_rollout() -> None:
    found = by_type(with_workload(facts(), "decode", ready=2, updated=2, total=3))
    assert (found["DecodeReady"].status, found["Ready"].status) == ("False", "False")
    assert by_type(with_workload(facts(), "decode", ready=2, updated=2, total=2))["Ready"].holds


def test_a_kind_that_is_missed_for_a_moment_keeps_the_object_from_being_ready() -> None:
    found = by_type(facts(problems={("Service", "qwen"): Problem(Reason.KIND_MISSING, "404", again=True)}))
    assert not found["Ready"].holds


def test_a_paused_rollout_is_told_as_such() -> None:
    paused = (("Progressing", "Unknown", "DeploymentPaused", "Deployment is paused"),)
    found = by_type(with_workload(facts(), "decode", updated=0, conditions=paused))
    assert "spec.rollout.paused" in found["DecodeReady"].message


def test_workloads_without_numbers_count_as_not_ready() -> None:
    empty = Workload(
        replicas=1, ready=0, updated=0, current=True, engine=None, model="", traffic=False, total=0, conditions=()
    )
    made = facts()
    changed = {
        identity: replace(child, workload=empty) if child.workload is not None else child
        for identity, child in made.view.children.items()
    }
    found = by_type(replace(made, view=view(made.view.serving, changed)))
    assert not found["Available"].holds
    assert not found["DecodeReady"].holds


def test_what_is_stalled_makes_no_progress_elsewhere() -> None:
    found = by_type(
        with_workload(facts(problems={("Service", "qwen"): Problem(Reason.OWNED_BY_OTHER, "taken")}), "decode", ready=1)
    )
    assert found["Stalled"].holds
    assert (found["Progressing"].status, found["Reconciling"].status) == ("False", "False")


def test_a_claim_that_is_refused_keeps_storage_from_being_ready() -> None:
    refused = Problem(Reason.APPLY_FAILED, "refused as invalid", again=False)
    found = by_type(facts(problems={("PersistentVolumeClaim", "qwen-cache"): refused}))
    assert (found["StorageReady"].status, found["StorageReady"].reason) == ("False", Reason.APPLY_FAILED)
    assert "qwen-cache" in found["StorageReady"].message


STORED = {**SPEC, "cache": {"l1": {"size": "8Gi"}, "l2": {"size": "16Gi"}}}
"""With a store that the operator deploys."""


def test_a_store_that_goes_while_engines_serve_is_unreachable_and_degrades() -> None:
    made = with_workload(facts(spec=STORED), "store", ready=0)
    killed = {"name": "store", "restartCount": 1, "ready": False, "lastState": {"terminated": {"exitCode": 137}}}
    down = pod("qwen-store-0", "store", "", ready=False, containerStatuses=[killed])
    found = by_type(with_pods(made, down))
    told = found["StorageReady"]
    assert (told.status, told.reason) == ("False", Reason.L2_UNREACHABLE)
    assert told.message.startswith("0 of 1 store pods are ready: engines serve without it")
    assert "pod qwen-store-0: container store ended with exit code 137" in told.message
    assert (found["Degraded"].status, found["Degraded"].reason) == ("True", Reason.L2_UNREACHABLE)
    assert not found["Ready"].holds
    assert not found["Progressing"].holds
    assert found["Available"].holds


@pytest.mark.parametrize(
    ("role", "changes"),
    [
        ("decode", {"ready": 0}),
        ("decode", {"current": False}),
        ("store", {"current": False}),
        ("store", {"updated": 0}),
    ],
    ids=["engines load", "engines are replaced", "the store is changed", "the store is replaced"],
)
def test_a_store_that_starts_with_its_engines_or_is_changed_is_no_outage(role: str, changes: dict[str, Any]) -> None:
    found = by_type(with_workload(with_workload(facts(spec=STORED), "store", ready=0), role, **changes))
    assert (found["StorageReady"].status, found["StorageReady"].reason) == ("False", Reason.STARTING)
    assert not found["Degraded"].holds


def test_a_store_that_finds_no_node_says_so() -> None:
    made = with_workload(with_workload(facts(spec=STORED), "store", ready=0), "decode", ready=0)
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient memory"}
    waits = pod("qwen-store-0", "store", "", ready=False, conditions=[scheduled])
    found = by_type(with_pods(made, waits))
    assert found["StorageReady"].message == (
        "0 of 1 store pods are ready: pod qwen-store-0: Insufficient memory"
        "; asked for by spec.cache.l2.size: lower it, or add nodes"
    )


def test_pods_that_a_policy_refuses_are_told_with_its_words_and_without_their_changing_names() -> None:
    message = 'pods "qwen-decode-abc12" is forbidden: violates PodSecurity "restricted:latest"'
    failed = (("ReplicaFailure", "True", "FailedCreate", message),)
    found = by_type(with_workload(facts(), "decode", ready=0, conditions=failed))
    assert 'violates PodSecurity "restricted:latest"' in found["DecodeReady"].message
    assert "abc12" not in found["DecodeReady"].message


def test_the_tiers_column_names_the_default_store() -> None:
    found = document(facts(spec={**SPEC, "cache": {"l2": {"size": "4Gi"}}}))
    assert found["tiers"] == {"l1": "off", "l2": "valkey 4Gi"}


@pytest.mark.parametrize(("owner", "shown"), [("auto", "4Gi"), ("scheduler", "4Gi"), ("worker", "4Gi worker")])
def test_the_tiers_column_names_the_owner_of_l1_where_that_is_the_workers(owner: str, shown: str) -> None:
    found = document(facts(spec={**SPEC, "cache": {"l1": {"size": "4Gi", "owner": owner}}}))
    assert found["tiers"]["l1"] == shown


def test_of_an_object_that_was_never_planned_no_role_is_counted() -> None:
    made = facts()
    never = replace(made, plan=None, revision="", disaggregated=False, transfer=None, view=view(stored(), {}))
    assert "roles" not in document(never)
    serves = replace(made, plan=None)
    assert {role: said["summary"] for role, said in document(serves)["roles"].items()} == {
        "prefill": "1/1", "decode": "2/2",
    }  # fmt: skip
