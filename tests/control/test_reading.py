from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.control.bodies import SPEC, children, live, planned, stored, view

from kvserving_operator.control.observe import Serving, View, child_of
from kvserving_operator.control.reconcile import observed_of, read
from kvserving_operator.plan import labels
from kvserving_operator.plan.types import CLUSTER, Observed

OLD = "0.30.0"


def made_by(serving: Serving, version: str) -> View:
    """A view of the children of ``serving``, planned for another engine version than the newest."""
    older = read(stored({**SPEC, "engine": {"version": version}}), CLUSTER, Observed())
    assert older.plan is not None
    found = {}
    for manifest in older.plan.objects:
        child = child_of(live(dict(manifest), serving), str(manifest["apiVersion"]), str(manifest["kind"]))
        found[child.identity] = child
    return view(serving, found)


def test_an_engine_once_chosen_is_read_back_from_its_deployment() -> None:
    found = observed_of(made_by(stored(), OLD), frozenset())
    assert found.engine_version == OLD
    kept = read(stored(), CLUSTER, found)
    assert kept.plan is not None
    assert kept.plan.profile.engine_version == OLD


def test_a_status_that_someone_edited_changes_no_engine() -> None:
    status = {"engine": {"version": "0.33.0", "image": "example.com/other:1"}}
    found = observed_of(made_by(stored(status=status), OLD), frozenset())
    assert found.engine_version == OLD


def test_an_annotation_that_someone_edited_changes_no_engine() -> None:
    serving = stored()
    reading = planned(serving)
    assert reading.plan is not None
    manifest: Any = next(m for m in reading.plan.objects if m["metadata"]["name"].startswith("qwen-decode"))
    body = live(dict(manifest), serving)
    body["metadata"]["annotations"][labels.ENGINE_VERSION] = OLD
    del body["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:annotations"][f"f:{labels.ENGINE_VERSION}"]
    child = child_of(body, "apps/v1", "Deployment")
    found = observed_of(view(serving, {child.identity: child}), frozenset())
    assert found.engine_version is None
    found = observed_of(view(serving, {child.identity: child}), frozenset(), ("0.32.0", "vllm/vllm-openai:v0.32.0"))
    assert found.engine_version == "0.32.0", "what this process planned last"


@pytest.mark.parametrize("rewritten", ["evil.example/x:1", "mirror.local/vllm/vllm-openai:v0.33.0"])
def test_an_image_that_a_hand_or_a_policy_put_into_the_pods_is_not_taken_over(rewritten: str) -> None:
    serving = stored()
    reading = planned(serving)
    assert reading.plan is not None
    found = {}
    for manifest in reading.plan.objects:
        body = copy.deepcopy(live(dict(manifest), serving))
        if manifest["kind"] == "Deployment":
            body["spec"]["template"]["spec"]["containers"][0]["image"] = rewritten
        child = child_of(body, str(manifest["apiVersion"]), str(manifest["kind"]))
        found[child.identity] = child
    again = read(serving, CLUSTER, observed_of(view(serving, found), frozenset()))
    assert again.plan is not None
    assert again.plan.revision == reading.plan.revision


def test_a_role_whose_deployment_is_gone_gets_the_engine_of_the_other() -> None:
    whole = made_by(stored(), OLD)
    left = {identity: child for identity, child in whole.children.items() if child.role != "decode"}
    assert observed_of(view(whole.serving, left), frozenset()).engine_version == OLD


def test_nothing_is_known_before_the_first_engine() -> None:
    assert observed_of(view(stored(), {}), frozenset()) == Observed()
    assert observed_of(view(stored(), children(stored(), only="Service")), frozenset()) == Observed()
