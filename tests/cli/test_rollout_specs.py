"""Which kept spec undo returns to, what stays as it is, and which fields change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cli.rollouts import condition, config_map, failed, revision, rolling, served, spec, unreadable

from kvserving_operator.cli import rollout_specs as specs
from kvserving_operator.local.errors import LocalError
from kvserving_operator.plan import history

FIRST, SECOND, THIRD = spec("0.33.0"), spec("0.32.0"), spec("0.30.0")
ALL = [config_map(FIRST, 1), config_map(SECOND, 2), config_map(THIRD, 3)]


def undone(body: dict[str, Any], config_maps: list[dict[str, Any]], wanted: str | None = None) -> dict[str, Any]:
    """The spec that undo writes."""
    kept, present = specs.kept_of(body, config_maps), specs.present_of(body)
    return specs.returned(specs.chosen(kept, present, wanted), present)


def test_kept_specs_are_those_of_this_object_and_the_newest_is_first() -> None:
    others = [config_map(spec("0.31.0"), 4, uid="of another object"), {"metadata": {"name": "x"}, "data": {"a": "b"}}]
    kept = specs.kept_of(served(THIRD), [*others, *ALL])
    assert [entry.revision for entry in kept] == [revision(THIRD), revision(SECOND), revision(FIRST)]
    assert kept[-1].first_seen == "2026-01-01T00:01:00Z"
    assert kept[-1].written == "2026-01-01T01:01:00Z"
    assert kept[-1].spec == FIRST


def test_the_default_is_the_newest_that_is_neither_the_present_one_nor_failed() -> None:
    assert undone(served(THIRD), ALL) == SECOND
    assert undone(served(SECOND), ALL[:2]) == FIRST
    # The newest of all, where the present one is older: undo of an undo.
    assert undone(served(FIRST), ALL) == THIRD


def test_what_serves_beside_a_new_revision_comes_before_what_is_newer() -> None:
    assert undone(rolling(FIRST, THIRD), ALL) == FIRST
    assert undone(failed(FIRST, THIRD), ALL) == FIRST


def test_nothing_is_guessed_where_the_spec_of_the_one_that_serves_is_not_kept() -> None:
    body = rolling(FIRST, THIRD)
    with pytest.raises(LocalError) as error:
        undone(body, ALL[1:])
    said = str(error.value)
    assert said.startswith(f"revision {revision(FIRST)[:8]} of qwen serves, and its spec is not kept: apply the file")
    assert f"there are: {revision(THIRD)[:8]} (coming up), {revision(SECOND)[:8]} (kept)" in said
    assert undone(body, ALL[1:], revision(SECOND)) == SECOND


def test_a_failed_revision_is_returned_to_only_where_it_is_named() -> None:
    body = failed(FIRST, SECOND)
    # Someone has gone on to a third one, and the status still tells of the failure.
    body["spec"] = THIRD
    body["status"] |= {"revision": revision(THIRD), "rollout": {"failed": {"revision": revision(SECOND)}}}
    del body["status"]["updatingRevision"]
    assert undone(body, ALL) == FIRST
    assert undone(body, ALL, revision(SECOND)[:4]) == SECOND


def test_a_spec_that_the_operator_refuses_or_has_not_seen_is_left_for_the_one_that_serves() -> None:
    body = served(SECOND)
    body["spec"] = spec("0.19.0")
    body["status"]["conditions"][2]["status"] = "False"
    assert undone(body, ALL) == SECOND
    body = served(THIRD)
    body["metadata"]["generation"] = 3
    body["status"]["revision"] = revision(SECOND)
    assert undone(body, ALL) == SECOND


def test_without_knowing_which_revision_the_present_spec_is_nothing_is_guessed() -> None:
    body = served(spec("0.32.0", decode={"replicas": 5}))
    body["metadata"]["generation"] = 3
    body["status"]["revision"] = revision(SECOND)
    with pytest.raises(LocalError, match=r"has not planned the present spec of qwen.* --to-revision; there are: "):
        undone(body, ALL)


def failing(reason: str) -> dict[str, Any]:
    """An object whose engines were changed in place, and are not ready for ``reason``."""
    body = served(THIRD)
    body["status"]["conditions"].append(condition("DecodeReady", "False", reason))
    return body


def test_a_failure_in_place_is_no_reason_to_guess_which_former_revision_served() -> None:
    with pytest.raises(LocalError) as error:
        undone(failing("PodFailing"), ALL)
    said = str(error.value)
    assert said.startswith("engines of qwen fail (DecodeReady: PodFailing), and no other revision is coming up")
    assert "of a change in place, which undo does not take back. Take a change in place back field by field" in said
    assert f"name one with --to-revision; there are: {revision(THIRD)[:8]} (serving), " in said
    assert undone(failing("PodFailing"), ALL, revision(FIRST)) == FIRST


def test_engines_that_only_start_or_fail_in_a_rollout_leave_the_default_as_it_is() -> None:
    for reason in ("LoadingModel", "PodLost"):
        assert undone(failing(reason), ALL) == SECOND
    body = rolling(FIRST, THIRD)
    body["status"]["conditions"].append(condition("DecodeReady", "False", "PodFailing"))
    assert undone(body, ALL) == FIRST


def test_a_revision_is_named_by_its_first_digits_and_unknown_ones_list_those_kept() -> None:
    body = served(THIRD)
    assert undone(body, ALL, revision(FIRST)) == FIRST
    assert undone(body, ALL, revision(FIRST)[:5].upper()) == FIRST
    with pytest.raises(LocalError) as error:
        undone(body, ALL, "00000")
    assert str(error.value) == (
        f"no kept revision begins with 00000; there are: {revision(THIRD)[:8]} (serving), "
        f"{revision(SECOND)[:8]} (kept), {revision(FIRST)[:8]} (kept)"
    )
    twin = config_map(FIRST, 9)
    twin["metadata"]["labels"]["kvserving.dev/revision"] = revision(FIRST)[:5] + "0" * 11
    with pytest.raises(LocalError, match="several kept revisions begin with"):
        undone(body, [*ALL, twin], revision(FIRST)[:5])


def test_without_a_former_spec_there_is_nothing_to_return_to() -> None:
    with pytest.raises(
        LocalError, match=r"no former spec of qwen is kept; there are: [0-9a-f]{8} \(serving\)"
    ) as error:
        undone(served(FIRST), ALL[:1])
    assert "changed in place" in str(error.value)
    assert "set such a field to null by `kubectl patch`, or `kubectl replace -f FILE`" in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        *("{", "null", "[]", '{"model": "x"}', '{"engine": [1]}', '{"router": [1]}', '{"prefill": 5}', "[" * 200_000),
        '{"cache": ' + "[" * 500 + "]" * 500 + "}",
    ],
    ids=lambda text: text[:20],
)
def test_an_unreadable_spec_is_refused_by_its_revision(text: str) -> None:
    kept = specs.kept_of(served(FIRST), [unreadable(5, text)])
    assert (specs.model(kept[0]), specs.engine(kept[0])) == ("-", "the operator's choice")
    with pytest.raises(LocalError, match="kept spec of revision feedfeed cannot be read"):
        undone(served(FIRST), [ALL[0], unreadable(5, text)])


def test_numbers_ratio_suspend_and_rollout_stay_as_they_are() -> None:
    old = spec("0.33.0", ratio={"max": "4:1"}, rollout={"maxSurge": 3}, router={"replicas": 3, "policy": "roundRobin"})
    now = spec(
        "0.32.0",
        prefill={"autoscaling": {"min": 1, "max": 4}},
        decode={"replicas": 7},
        rollout={"paused": True},
        suspend=True,
        router={"replicas": 5},
    )
    made = undone(served(now), [config_map(old, 1), config_map(now, 2)])
    assert made == spec(
        "0.33.0",
        prefill={"autoscaling": {"min": 1, "max": 4}},
        decode={"replicas": 7},
        rollout={"paused": True},
        suspend=True,
        router={"replicas": 5, "policy": "roundRobin"},
    )


def test_a_role_whose_numbers_are_now_left_to_the_default_loses_them() -> None:
    made = undone(served(spec("0.32.0", decode=None)), ALL[:2])
    assert made == spec("0.33.0", decode={})


def test_numbers_of_a_role_that_appears_or_goes_are_the_kept_ones() -> None:
    pairs = spec("0.33.0", ratio={"max": "1:1"})
    alone = spec("0.33.0", prefill=None, decode={"replicas": 6})
    both = [config_map(pairs, 1), config_map(alone, 2)]
    assert undone(served(alone), both) == pairs
    assert undone(served(pairs), both) == alone


def test_routers_of_another_type_take_no_number_along() -> None:
    old = spec("0.33.0", router={"type": "none"})
    now = spec("0.32.0", router={"replicas": 5})
    assert undone(served(now), [config_map(old, 1), config_map(now, 2)]) == old


def test_a_spec_that_left_the_engine_to_the_operator_gets_the_one_it_had() -> None:
    chosen = spec(None)
    both = [config_map(chosen, 1), config_map(SECOND, 2)]
    # The operator would go on with 0.32.0, which runs, and make the same revision again.
    assert undone(served(SECOND), both) == FIRST
    other = spec(None, engine={"kv": {"blockSize": 32}})
    body = served(other)
    assert undone(body, [config_map(chosen, 1), config_map(other, 2)]) == chosen


def test_an_image_that_the_version_does_not_tell_is_named_too() -> None:
    mirror = "registry.example/team/engine:nightly"
    former = spec("0.31.0", engine={"version": "0.31.0", "image": mirror})
    unnamed = config_map(former, 3)
    # Version and image taken out of the spec: the operator goes on with them, so that the revision stays.
    unnamed["data"][history.SPEC_KEY] = json.dumps(spec(None))
    assert undone(served(THIRD), [unnamed, ALL[2]]) == former


def test_a_version_that_runs_in_another_image_is_named_as_well() -> None:
    mirror = "registry.example/team/engine:v0.33.0"
    now = spec(None, engine={"image": mirror})
    body = served(now, engine={"version": "0.33.0", "image": mirror})
    # Without a name the operator would go on with the image that runs.
    assert undone(body, [config_map(spec(None), 1), config_map(now, 2)]) == FIRST


def test_an_engine_that_nobody_noted_is_left_to_the_operator() -> None:
    unnamed = config_map(spec(None), 1)
    del unnamed["metadata"]["annotations"]
    body = served(THIRD)
    made = undone(body, [unnamed, ALL[2]])
    assert made == spec(None)
    present = specs.present_of(body)
    assert specs.revision_of(made, present, present.engine) == revision(THIRD)


def test_paths_name_fields_and_no_values() -> None:
    old = spec("0.33.0", engine={"env": [{"name": "TOKEN", "value": "s3cr3t"}], "args": ["--a"]})
    new = spec(
        "0.33.0",
        engine={"env": [{"name": "TOKEN", "value": "other"}], "args": ["--a"]},
        cache={"l1": {"size": "8Gi"}},
        scheduling={"nodeSelector": {"topology.kubernetes.io/zone": "a"}},
    )
    assert list(specs.differing(old, new, "spec")) == ["spec.cache", "spec.engine.env", "spec.scheduling"]
    assert list(specs.differing({"a": {"x/y": 1, "b": 2}}, {"a": {"x/y": 2, "b": 2}}, "spec")) == ['spec.a["x/y"]']
    assert list(specs.differing(old, old, "spec")) == []


def test_two_ways_to_write_a_value_are_no_change() -> None:
    body = served(spec("0.32.0", transfer={"verify": {"interval": "5m"}, "later": 1}))
    present = specs.present_of(body)
    assert specs.changes(present, spec("0.32.0", transfer={"verify": {"interval": "5m"}})) == ()
    assert specs.changes(present, spec("0.32.0", transfer={"verify": {"interval": "6m"}})) == (
        "spec.transfer.verify.interval",
    )


def test_states_tell_what_became_of_each_revision() -> None:
    def states(body: dict[str, Any]) -> list[str]:
        present = specs.present_of(body)
        return [specs.state(entry, present) for entry in specs.kept_of(body, ALL)]

    assert states(served(THIRD)) == ["serving", "kept", "kept"]
    assert states(rolling(FIRST, THIRD)) == ["coming up", "kept", "serving"]
    assert states(failed(FIRST, THIRD)) == ["failed", "kept", "serving"]
    first = served(THIRD)
    first["status"]["conditions"][1]["status"] = "False"
    assert states(first) == ["coming up", "kept", "kept"]


def test_faults_of_a_spec_that_this_version_refuses_are_told() -> None:
    present = specs.present_of(served(FIRST))
    assert specs.faults(FIRST, present) == ()
    found = specs.faults(spec("0.19.0", router={"replicas": 0}), present)
    assert [fault.path for fault in found] == ["spec.router.replicas"]
    assert [fault.path for fault in specs.faults(spec("0.19.0", gone=1), present)] == [
        "spec.gone",
        "spec.engine.version",
    ]


def test_whoever_applies_the_object_from_elsewhere_is_named_by_its_fields() -> None:
    def entry(manager: str, field: str = "f:spec", **more: str) -> dict[str, Any]:
        return {"manager": manager, "fieldsV1": {field: {}}, **more}

    body = served(FIRST)
    assert specs.appliers(body) == ()
    body["metadata"]["managedFields"] = [
        entry("argocd-controller"),
        entry("kustomize-controller"),
        entry("helm", "f:metadata"),
        entry("helm-controller", subresource="status"),
        entry("kubectl-edit"),
        entry("Helm"),
    ]
    assert specs.appliers(body) == ("Argo CD (argocd-controller)", "Flux (kustomize-controller)")


def test_a_section_that_somebody_set_to_null_is_planned_as_one_that_is_not_there() -> None:
    present = served(FIRST)
    nulled = specs.revision_of({**FIRST, "router": None}, specs.present_of(present), ("0.33.0", None))
    assert nulled == revision(FIRST)
