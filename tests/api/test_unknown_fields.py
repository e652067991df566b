"""A field that is not known is named with the nearest known one, or where it belongs."""

from __future__ import annotations

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
