from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from kvserving_operator.control import drift
from kvserving_operator.control.config import ROLLOUT_MANAGER

MANIFEST: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "a", "namespace": "n", "labels": {"x": "1"}, "ownerReferences": [{"uid": "u"}]},
    "spec": {
        "replicas": 2,
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "engine",
                        "args": ["--a", "--b"],
                        "ports": [{"name": "http", "containerPort": 8000}],
                        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                    }
                ],
                "volumes": [{"name": "shm", "emptyDir": {}}],
            }
        },
    },
}
FIELDS: dict[str, Any] = {
    "f:metadata": {"f:labels": {"f:x": {}}, "f:ownerReferences": {'k:{"uid":"u"}': {}}},
    "f:spec": {
        "f:replicas": {},
        "f:template": {
            "f:spec": {
                "f:containers": {
                    'k:{"name":"engine"}': {
                        ".": {},
                        "f:name": {},
                        "f:args": {},
                        "f:ports": {
                            'k:{"containerPort":8000,"protocol":"TCP"}': {".": {}, "f:name": {}, "f:containerPort": {}}
                        },
                        "f:volumeMounts": {'k:{"mountPath":"/dev/shm"}': {".": {}, "f:name": {}, "f:mountPath": {}}},
                    }
                },
                "f:volumes": {'k:{"name":"shm"}': {".": {}, "f:name": {}, "f:emptyDir": {}}},
            }
        },
    },
}


def own(fields: dict[str, Any], **entry: Any) -> drift.Fields:
    return drift.own_fields([{"manager": "kvserving-operator", "operation": "Apply", "fieldsV1": fields, **entry}])


def without(path: str) -> dict[str, Any]:
    """``FIELDS`` after someone took the field at ``path``; the apiserver keeps no tree without leaves."""
    fields = copy.deepcopy(FIELDS)
    parents = [fields]
    *above, last = path.split("/")
    for part in above:
        parents.append(parents[-1][part])
    for part, parent in zip([last, *reversed(above)], reversed(parents), strict=True):
        del parent[part]
        if parent:
            break
    return fields


def test_what_was_applied_matches() -> None:
    assert drift.matches(MANIFEST, own(FIELDS))


@pytest.mark.parametrize(
    "path",
    [
        "f:spec/f:replicas",
        "f:metadata/f:labels/f:x",
        'f:spec/f:template/f:spec/f:containers/k:{"name":"engine"}/f:args',
        'f:spec/f:template/f:spec/f:volumes/k:{"name":"shm"}',
    ],
)
def test_a_field_that_someone_else_took_does_not_match(path: str) -> None:
    assert not drift.matches(MANIFEST, own(without(path)))


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("f:spec/f:replicas", "spec.replicas"),
        ("f:metadata/f:labels/f:x", "metadata"),
        (
            'f:spec/f:template/f:spec/f:containers/k:{"name":"engine"}/f:args',
            "spec.template.spec.containers[engine].args",
        ),
        (
            'f:spec/f:template/f:spec/f:containers/k:{"name":"engine"}/f:volumeMounts',
            "spec.template.spec.containers[engine].volumeMounts",
        ),
        ('f:spec/f:template/f:spec/f:volumes/k:{"name":"shm"}', "spec.template.spec.volumes"),
    ],
)
def test_what_was_taken_from_us_is_named_by_its_highest_part(path: str, told: str) -> None:
    assert drift.gained(own(without(path)), own(FIELDS), {}) == [told]
    assert drift.gained(own(FIELDS), own(without(path)), {}) == []


def test_members_of_lists_are_named_by_their_keys_and_values_not_at_all() -> None:
    ports: dict[str, Any] = {
        'k:{"containerPort":8000,"protocol":"TCP"}': {"f:name": {}},
        'k:{"containerPort":8001}': {"f:name": {}},
    }
    before: dict[str, Any] = {"f:spec": {"f:ports": {'k:{"containerPort":8001}': {}}, "f:kept": {}}}
    after = {"f:spec": {"f:ports": ports, "f:finalizers": {'v:"secret"': {}}, "f:kept": {".": {}}}}
    assert drift.gained(before, after, {}) == ["spec.finalizers", "spec.ports[8000,TCP]", "spec.ports[8001].name"]
    assert drift.gained({"f:finalizers": {}}, {"f:finalizers": {'v:"secret"': {}}}, {}) == ["finalizers[]"]


def test_what_the_operator_took_itself_is_left_out_and_nothing_beside_it() -> None:
    taken = own({"f:spec": {"f:replicas": {}, "f:labels": {"f:traffic": {}}}}, manager=ROLLOUT_MANAGER)
    assert taken == {}
    entry = {"manager": ROLLOUT_MANAGER, "fieldsV1": {"f:spec": {"f:replicas": {}, "f:labels": {"f:traffic": {}}}}}
    taken = drift.own_fields([entry], ROLLOUT_MANAGER)
    after: dict[str, Any] = {"f:spec": {"f:replicas": {}, "f:labels": {"f:traffic": {}, "f:role": {}}, "f:paused": {}}}
    assert drift.gained({"f:spec": {"f:paused": {}}}, after, taken) == ["spec.labels.role"]
    assert drift.gained({}, after, taken) == ["spec.labels.role", "spec.paused"]


def test_a_field_that_we_no_longer_want_does_not_match() -> None:
    less = copy.deepcopy(MANIFEST)
    del less["spec"]["replicas"]
    assert not drift.matches(less, own(FIELDS))


def test_entries_of_others_and_of_subresources_do_not_count() -> None:
    assert not drift.matches(MANIFEST, own(FIELDS, manager="kubectl"))
    assert not drift.matches(MANIFEST, own(FIELDS, subresource="status"))


def test_what_a_webhook_changed_in_our_request_counts_as_ours() -> None:
    taken = without("f:spec/f:replicas")
    entries = [
        {"manager": "kvserving-operator", "operation": "Apply", "fieldsV1": taken},
        {"manager": "kvserving-operator", "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
    ]
    assert drift.matches(MANIFEST, drift.own_fields(entries))


def test_sets_are_compared_by_their_members() -> None:
    manifest = {"metadata": {"labels": {}}, "spec": {"types": ["b", "a"]}}
    fields: dict[str, Any] = {"f:metadata": {"f:labels": {}}, "f:spec": {"f:types": {'v:"a"': {}, 'v:"b"': {}}}}
    assert drift.matches(manifest, own(fields))
    assert not drift.matches({**manifest, "spec": {"types": ["a"]}}, own(fields))


def test_the_digest_depends_on_content_alone() -> None:
    turned = json.loads(json.dumps(MANIFEST, sort_keys=True))
    assert drift.digest(MANIFEST) == drift.digest(turned)
    changed = copy.deepcopy(MANIFEST)
    changed["spec"]["template"]["spec"]["containers"][0]["args"].reverse()
    assert drift.digest(MANIFEST) != drift.digest(changed)


def test_equal_fields_are_one_object_in_memory() -> None:
    assert own(copy.deepcopy(FIELDS)) is own(copy.deepcopy(FIELDS))
