"""A field that is not known is named with the nearest known one, or where it belongs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api.objects import serving
from tests.api.refusals import faults, refusal_of

from kvserving_operator.api.load import inspect, load


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("spec.prefil", "did you mean prefill?"),
        ("spec.autoscaling", "it belongs to spec.prefill.autoscaling or spec.decode.autoscaling"),
        ("spec.cache.l1.capacity", "known here: owner, policy, roles, size"),
        ("spec.router.service.Port", "did you mean port?"),
        ("metadata.lables", "did you mean labels?"),
        ("specs", "did you mean spec?"),
        ("spec.max_surge", "known here"),
        ("spec.rollout.max_surge", "did you mean maxSurge?"),
        ("spec.parallelism", "it belongs to spec.prefill.parallelism or spec.decode.parallelism"),
    ],
)
def test_an_unknown_field_is_named_with_the_nearest_known_one(path: str, hint: str) -> None:
    changes = {"spec.cache.l1.size": "1Gi"} if path.startswith("spec.cache.l1") else {}
    (fault,) = faults(serving({**changes, path: {}}))
    assert fault.startswith(f"{path}: unknown field; ")
    assert hint in fault


def test_an_unknown_field_in_a_list_has_an_index() -> None:
    env = [{"name": "A", "value": "b"}, {"name": "B", "val": "c"}]
    assert refusal_of("spec.decode.env", env).startswith("spec.decode.env[1].val: unknown field; did you mean value?")


def test_a_field_name_with_dots_is_quoted_in_the_path() -> None:
    assert refusal_of("spec.decode", {"a.b": 1}).startswith("spec.decode['a.b']: unknown field")


def test_free_form_parts_are_not_looked_into() -> None:
    template = {"spec": {"anything": [{"goes": 1.5}]}}
    role = load(serving({"spec.decode.template": template}), strict=True).spec.decode
    assert role.template == template


def test_without_strict_unknown_fields_are_ignored() -> None:
    old = serving({"spec.prefill.removed": 1, "spec.gone": {"a": [1]}, "metadata.novel": 1, "extra": {}})
    assert load(old, strict=False) == load(serving(), strict=True)


def test_without_strict_wrong_fields_are_still_refused() -> None:
    assert faults(serving({"spec.gone": 1, "spec.decode.replicas": -1}), strict=False) == [
        "spec.decode.replicas: -1 is too small: at least 0"
    ]


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("spec.prefill.tp", "write parallelism: {tensor: N}"),
        ("spec.decode.tensorParallel", "write parallelism: {tensor: N}"),
        ("spec.decode.tensor_parallel_size", "write parallelism: {tensor: N}"),
        ("spec.decode.tensor", "write parallelism: {tensor: N}"),
        ("spec.decode.pipelineParallelSize", "write parallelism: {pipeline: N}"),
        ("spec.decode.dp", "write parallelism: {data: N}"),
        ("spec.decode.expertParallel", "write parallelism: {expert: true}"),
        ("spec.decode.parallelism.tp", "did you mean tensor?"),
        ("spec.decode.parallelism.tensorParallelSize", "did you mean tensor?"),
        ("spec.version", "it belongs to spec.engine.version"),
        ("spec.cache.owner", "it belongs to spec.cache.l1.owner"),
        ("spec.cache.size", "it belongs to spec.cache.l1.size or spec.cache.l2.size"),
    ],
)
def test_a_field_that_people_guess_is_told_where_it_is(path: str, hint: str) -> None:
    (fault,) = inspect(serving({path: 2}), strict=True).faults
    assert str(fault) == f"{path}: unknown field; {hint}"


BEGINNING = "{model: {uri: 'hf://a/b'}, "
SPACE = ", with a space behind the colon"


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("{prefill: {replicas:2}}", "spec.prefill['replicas:2']: unknown field; write \"replicas: 2\"" + SPACE),
        (
            "{cache: {l2: {type: filesystem, size: 1Gi, loads:always}}}",
            "spec.cache.l2['loads:always']: unknown field; write \"loads: always\"" + SPACE,
        ),
        (
            "{decode: {env: [{name: A, value:b}]}}",
            "spec.decode.env[0]['value:b']: unknown field; write \"value: b\"" + SPACE,
        ),
        (
            "{decode: {template: {spec: {nodeSelector: {disk:ssd}}}}}",
            "spec.decode.template.spec.nodeSelector['disk:ssd']: has no value; write \"disk: ssd\"" + SPACE,
        ),
        ("{prefil:2}", "spec['prefil:2']: unknown field; did you mean prefill?"),
        ("{prefill: replicas:2}", "spec.prefill: 'replicas:2' is not a map of fields: write \"replicas: 2\"" + SPACE),
    ],
)
def test_a_forgotten_space_after_a_colon_is_a_fault_with_what_to_write(spec: str, told: str) -> None:
    head = "apiVersion: kvserving.dev/v1alpha1\nkind: KVServing\nmetadata: {name: q}\n"
    text = f"{head}spec: {spec.replace('{', BEGINNING, 1)}\n"
    assert [str(fault) for fault in inspect(text, strict=True).faults] == [told]


def empty(*paths: str) -> dict[str, Any]:
    """An object with fields that have no value."""
    body = serving()
    for path in paths:
        *above, last = path.split(".")
        at = body
        for step in above:
            at = at.setdefault(step, {})
        at[last] = None
    return body


def test_a_forgotten_space_in_a_label_is_a_fault() -> None:
    body = empty("metadata.labels.team:search", "metadata.creationTimestamp")
    (fault,) = inspect(body, strict=True).faults
    assert str(fault) == "metadata.labels['team:search']: has no value; write \"team: search\"" + SPACE
    assert inspect(body, strict=False).faults == ()


@pytest.mark.parametrize("path", ["spec.prefil", "spec.rollout.max_surge", "specs", "metadata.lables"])
def test_an_unknown_field_is_found_where_it_has_no_value(path: str) -> None:
    (fault,) = inspect(empty(path), strict=True).faults
    assert str(fault).startswith(f"{path}: unknown field; did you mean ")
    assert inspect(empty(path), strict=False).faults == ()


def test_what_lies_in_an_unknown_field_is_no_second_fault() -> None:
    assert len(inspect(empty("spec.novel.a", "spec.novel.b.c"), strict=True).faults) == 1


def test_fields_of_the_spec_without_a_value_are_told_as_such() -> None:
    reading = inspect(empty("spec.prefill", "spec.cache.l1", "status"), strict=True)
    assert (reading.faults, reading.empty) == ((), ("spec.prefill", "spec.cache.l1"))
    assert inspect(empty("status.x", "metadata.uid"), strict=True).empty == ()
