"""YAML, JSON and mappings give one object; what is no KVServing is refused, with every fault at once."""

from __future__ import annotations

import pytest
import yaml
from tests.api.objects import HEAD, SPEC, serving
from tests.api.refusals import faults

from kvserving_operator.api.faults import Fault, InvalidSpec
from kvserving_operator.api.load import inspect, load
from kvserving_operator.api.parse import MAX_BYTES
from kvserving_operator.connectors import roles_with_l1


def test_yaml_json_and_mappings_give_the_same_object() -> None:
    text = HEAD + SPEC
    assert load(text, strict=True) == load(serving(), strict=True)
    assert load(yaml.safe_dump(serving()), strict=True) == load(serving(), strict=True)


def test_every_fault_is_reported_at_once() -> None:
    found = faults(
        serving(
            {
                "metadata.name": "Qwen",
                "spec.prefil": {},
                "spec.prefill.replicas": "two",
                "spec.cache": {"l1": {"size": "-8Gi", "capacity": "1Gi"}, "connectors": [{"name": "A", "weight": 0}]},
                "spec.engine.args": ["--model", "x"],
                "spec.transfer.rdma": {"mode": "required"},
            }
        )
    )
    assert sorted(fault.split(": ")[0] for fault in found) == [
        "metadata.name",
        "spec.cache.connectors[0].weight",
        "spec.cache.l1.capacity",
        "spec.cache.l1.size",
        "spec.engine.args[0]",
        "spec.prefil",
        "spec.prefill.replicas",
        "spec.transfer.rdma.mode",
    ]


def test_a_broken_file_names_the_line() -> None:
    assert faults(HEAD + "spec: {model: [}\n") == ["line 4, column 16: expected the node content, but found '}'"]


def test_a_duplicate_field_names_its_line() -> None:
    (fault,) = faults(HEAD + "spec:\n  model: {uri: 'hf://a/b'}\n  suspend: true\n  suspend: false\n")
    assert fault == "line 7, column 3: field 'suspend' is given twice: keep one"


def test_a_quoted_and_a_plain_key_of_equal_text_are_duplicates() -> None:
    (fault,) = faults(HEAD + "spec: {suspend: true, 'suspend': false}\n")
    assert "given twice" in fault


def test_a_merge_key_is_no_duplicate() -> None:
    text = HEAD + (
        "spec:\n  model: {uri: 'hf://a/b'}\n  prefill: &role {replicas: 2}\n  decode: {<<: *role, replicas: 4}\n"
    )
    spec = load(text, strict=True).spec
    assert spec.prefill is not None
    assert (spec.prefill.replicas, spec.decode.replicas) == (2, 4)


def test_a_ratio_without_quotes_is_text() -> None:
    spec = load(HEAD + "spec: {model: {uri: 'hf://a/b'}, prefill: {}, ratio: {min: 1:4, max: 2:1}}", strict=True).spec
    assert spec.ratio is not None
    assert spec.ratio.min is not None
    assert spec.ratio.min.terms == (1, 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("# nothing\n---\n", "is empty"),
        (HEAD + SPEC + "---\n" + HEAD + SPEC, "2 documents"),
        ("- a\n", "a list"),
        ("just text", "a single value"),
        ("{}", "kind: is missing"),
        ("kind: Deployment\napiVersion: kvserving.dev/v1alpha1", "'Deployment' is not KVServing"),
        ("kind: KVserving\napiVersion: kvserving.dev/v1alpha1", "did you mean KVServing?"),
        ("kind: KVServing\napiVersion: example.org/v1\nspec: {}", "'example.org/v1' is not kvserving.dev/v1alpha1"),
        ("a: \x07", "a character is not allowed"),
        ("a: !!python/object:os.system {}", "could not determine a constructor"),
        ("a: !!timestamp x", "a value cannot be read"),
        ("a: !!bool x", "a value cannot be read"),
        ("a: !!int ''", "a value cannot be read"),
        ("? [a]\n: b", "unhashable key"),
        ("a: " + "[" * 2000, "nested too deeply"),
        ("a: " + "[" * 200_000, "line 1, column 69: it is nested too deeply"),
        ("{a: " * 2000, "nested too deeply"),
        ("- " * 2000, "nested too deeply"),
        ("a: " + "[" * 65 + "]" * 65, "nested deeper than 64"),
        ("a: &a [*a]", "nested deeper"),
        ("x" * (MAX_BYTES + 1), "larger than"),
    ],
    ids=lambda text: repr(text[:30]),
)
def test_what_is_no_kvserving_is_refused_with_one_clear_fault(text: str, words: str) -> None:
    (fault,) = faults(text)
    assert words in fault


@pytest.mark.parametrize(
    ("api", "words"),
    [
        ("apiVersion: apps/v1", "'apps/v1' is not kvserving.dev/v1alpha1: another product's object"),
        ("apiVersion: kvserving.dev/v9", "'kvserving.dev/v9' is not kvserving.dev/v1alpha1"),
        ("spec: {}", "is missing: write apiVersion: kvserving.dev/v1alpha1"),
    ],
)
def test_of_a_wrong_kind_the_version_is_told_too(api: str, words: str) -> None:
    assert faults(f"kind: Deployment\n{api}") == [
        "kind: 'Deployment' is not KVServing; known here: KVServing",
        f"apiVersion: {words}",
    ]


def test_aliases_that_multiply_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    (fault,) = faults("\n".join(lines))
    assert "values" in fault


def test_an_object_of_another_version_of_the_api_is_refused() -> None:
    assert faults(serving({"apiVersion": "kvserving.dev/v9"})) == [
        "apiVersion: 'kvserving.dev/v9' is not kvserving.dev/v1alpha1"
    ]


def test_nulls_are_absent_fields() -> None:
    text = HEAD + "spec: {model: {uri: 'hf://a/b', name: null}, prefill: null, cache: {l1: ~}}\n"
    spec = load(text, strict=True).spec
    assert spec.prefill is None
    assert spec.cache.l1 is None


def test_metadata_and_status_of_a_stored_object_are_read() -> None:
    stored = serving(
        {"metadata": {"name": "qwen", "namespace": "a", "uid": "u", "generation": 3, "managedFields": [{}]}}
    )
    stored["status"] = {"conditions": "whatever"}
    metadata = load(stored, strict=True).metadata
    assert (metadata.namespace, metadata.uid, metadata.generation) == ("a", "u", 3)


def test_a_fault_says_path_and_message() -> None:
    assert str(Fault("spec.a", "is wrong")) == "spec.a: is wrong"
    assert str(Fault("", "is empty")) == "is empty"


def test_an_object_with_violated_rules_is_still_handed_over_for_further_checks() -> None:
    reading = inspect(serving({"spec.engine.args": ["--model=x"], "spec.novel": 1}), strict=True)
    assert reading.serving is not None
    assert len(reading.faults) == 2
    with pytest.raises(InvalidSpec) as refusal:
        load(serving({"spec.engine.args": ["--model=x"]}), strict=True)
    assert refusal.value.serving is not None


def test_an_object_with_wrong_types_is_not_handed_over() -> None:
    assert inspect(serving({"spec.decode.replicas": "2"}), strict=True).serving is None


def test_a_tier_without_roles_goes_to_the_role_there_is() -> None:
    spec = load(serving({"spec.cache.l1": {"size": "1Gi"}}), strict=True).spec
    assert roles_with_l1(spec) == ("prefill",)
    alone = load(serving({"spec.cache.l1": {"size": "1Gi"}, "spec.prefill": None}), strict=True).spec
    assert roles_with_l1(alone) == ("decode",)
