from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.api.objects import serving

from kvserving_operator.api.faults import Fault, InvalidSpec
from kvserving_operator.api.load import inspect, load, load_file
from kvserving_operator.api.parse import MAX_BYTES
from kvserving_operator.connectors import roles_with_l1

HEAD = "apiVersion: kvserving.dev/v1alpha1\nkind: KVServing\nmetadata: {name: qwen}\n"
SPEC = "spec: {model: {uri: 'hf://Qwen/Qwen3-8B'}, prefill: {}, decode: {}}\n"


def faults(source: Any, *, strict: bool = True) -> list[str]:
    with pytest.raises(InvalidSpec) as refusal:
        load(source, strict=strict)
    return [str(fault) for fault in refusal.value.faults]


def refusal_of(path: str, value: Any) -> str:
    (fault,) = faults(serving({path: value}))
    return fault


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


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("spec.decode.replicas", "2", "'2' is not a whole number: remove the quotes"),
        ("spec.decode.replicas", 1.5, "1.5 is not a whole number"),
        ("spec.decode.replicas", True, "true is not a whole number"),
        ("spec.decode.replicas", 10**30, "is a number beyond 64 bits"),
        ("spec.suspend", "yes", "'yes' is not true or false"),
        ("spec.suspend", 1, "1 is not true or false"),
        ("spec.engine.version", 0.33, "0.33 is not text: put it in quotes"),
        ("spec.engine.version", "0.33", "'0.33' is not a version of three numbers such as 0.33.0"),
        ("spec.engine.kv.hashSeed", 0, "0 is not text: put it in quotes"),
        ("spec.engine.kv.blockSize", 0, "'0' is neither auto nor a number of tokens from 1 to 65536"),
        ("spec.engine.args", "--a", "'--a' is not a list"),
        ("spec.decode", [], "a list is not a map of fields"),
        ("spec.decode.env", [1], "the value is not a map of fields"),
        ("spec.router.type", "smgg", "'smgg' is not one of smg, vllm-router, external, none; did you mean smg?"),
        ("spec.router.type", "nginx", "'nginx' is not one of smg, vllm-router, external, none"),
        ("spec.transfer.lease", 30, "30 is a number, not a duration such as 30s, 5m or 1h30m"),
        ("spec.transfer.lease", "30 s", "'30 s' is not a duration such as 30s, 5m or 1h30m"),
        ("spec.transfer.lease", "0s", "'0s' must be greater than zero, such as 30s, 5m or 1h30m"),
        ("spec.decode.resources.limits", {"cpu": 0.5}, "0.5 is a number with a fraction: write it in quotes"),
        ("spec.router.service.port", 70000, "70000 is too large: at most 65535"),
        (
            "spec.model.secretRef",
            "HF Token",
            "'HF Token' is not a name of lowercase letters, digits, dashes and single dots",
        ),
        ("spec.cache.l1", {"size": "1Gi", "roles": []}, "a list has 0 entries: at least 1 must be given"),
        ("spec.engine.args", ["a"] * 65, "a list has more than 64 entries: shorten it"),
        ("spec.model.name", "a" * 1025, "has 1025 characters: at most 1024 are allowed, shorten it"),
        ("spec.cache.l1", {}, "is required"),
        ("spec.model", None, "is required"),
    ],
)
def test_wrong_values_are_told_in_one_short_sentence(path: str, value: Any, message: str) -> None:
    fault = refusal_of(path, value)
    assert fault.startswith(path)
    assert fault.endswith(f": {message}")


def test_a_value_that_json_does_not_know_is_refused() -> None:
    assert "put the value in quotes" in refusal_of("spec.decode.template", {"day": date(2026, 1, 1)})


def test_text_that_is_not_unicode_is_refused() -> None:
    assert faults('{"\\ud800": 1}')[0] == "a field name is not valid Unicode"
    assert refusal_of("spec.decode.template", {"a": "\ud800"}).endswith("is not valid Unicode text")


def test_values_of_variables_are_never_shown() -> None:
    found = faults(serving({"spec.decode.env": [{"name": "A", "value": 731}, {"name": "B", "value": "7" * 5000}]}))
    assert [fault.split(": ")[0] for fault in found] == ["spec.decode.env[0].value", "spec.decode.env[1].value"]
    assert not any("7" in fault.replace("4097", "") for fault in found if "env[0]" in fault)
    assert not any("777" in fault for fault in found)


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


@pytest.mark.parametrize(
    ("uri", "resolved"),
    [
        ("file:models/qwen", "file:///{base}/models/qwen"),
        ("file://models/qwen", "file:///{base}/models/qwen"),
        ("file:./a/../b", "file:///{base}/b"),
        ("file:~/m", "file:///{home}/m"),
        ("file://~/m", "file:///{home}/m"),
        ("file:///abs/m", "file:///abs/m"),
        ("file:/abs/m", "file:///abs/m"),
        ("file:///../../m", "file:///m"),
        ("hf://a/b", "hf://a/b"),
    ],
)
def test_file_uris_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, resolved: str) -> None:
    home, base = tmp_path / "home", tmp_path / "base"
    base.mkdir()
    monkeypatch.setenv("HOME", str(home))
    file = base / "serving.yaml"
    file.write_text(yaml.safe_dump(serving({"spec.model.uri": uri, "spec.model.loras": [{"name": "a", "uri": uri}]})))
    model = load_file(file).spec.model
    expected = resolved.format(base=str(base)[1:], home=str(home)[1:])
    assert (model.uri, model.loras[0].uri) == (expected, expected)


def test_a_relative_file_uri_without_a_folder_is_refused() -> None:
    assert "spec.model.uri" in refusal_of("spec.model.uri", "file:models/qwen")


def test_the_mapping_of_the_caller_is_not_changed(tmp_path: Path) -> None:
    source = serving({"spec.model.uri": "file:m"})
    load(source, strict=True, base_dir=tmp_path)
    assert source["spec"]["model"]["uri"] == "file:m"


def test_files_that_cannot_be_read_are_faults(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: b\nc: \xff\xfe")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (MAX_BYTES + 5))
    for path, words in (
        (tmp_path / "none.yaml", "cannot be read: No such file"),
        (tmp_path, "cannot be read: Is a directory"),
        (Path("a\0b"), "cannot be read"),
        (binary, "line 2: not UTF-8"),
        (large, "larger than"),
    ):
        with pytest.raises(InvalidSpec, match=words):
            load_file(path)


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + (HEAD + SPEC).encode())
    assert load_file(file).metadata.name == "qwen"


def test_a_tier_without_roles_goes_to_the_role_there_is() -> None:
    spec = load(serving({"spec.cache.l1": {"size": "1Gi"}}), strict=True).spec
    assert roles_with_l1(spec) == ("prefill",)
    alone = load(serving({"spec.cache.l1": {"size": "1Gi"}, "spec.prefill": None}), strict=True).spec
    assert roles_with_l1(alone) == ("decode",)


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


def test_a_wrong_entry_of_a_list_is_no_list_that_is_too_short() -> None:
    found = inspect(serving({"spec.cache": {"l1": {"size": "8Gi", "roles": ["prefil"]}}}), strict=True).faults
    assert [str(fault) for fault in found] == [
        "spec.cache.l1.roles[0]: 'prefil' is not one of prefill, decode; did you mean prefill?"
    ]
    (empty,) = inspect(serving({"spec.cache": {"l1": {"size": "8Gi", "roles": []}}}), strict=True).faults
    assert str(empty) == "spec.cache.l1.roles: a list has 0 entries: at least 1 must be given"


@pytest.mark.parametrize(
    ("l2", "told"),
    [
        ({"type": "s3"}, "spec.cache.l2.type: s3, mooncake and external need spec.cache.l2.url"),
        ({"type": "s3"}, "set it to s3://bucket/prefix, mooncake://host:50051 or redis://host:6379"),
        ({"url": "s3://bucket"}, "spec.cache.l2.url: is given without spec.cache.l2.type: set that to s3 (s3://bucket"),
        ({"type": "external", "url": "http://h:1"}, "spec.cache.l2.url: http://h:1 must start with redis://"),
        ({"type": "s3", "url": "redis://h"}, "spec.cache.l2.url: redis://h must be s3://bucket/prefix"),
    ],
)
def test_the_address_of_a_store_is_told_by_form_and_value(l2: dict[str, Any], told: str) -> None:
    (fault,) = inspect(serving({"spec.cache": {"l2": l2}}), strict=True).faults
    assert told in str(fault)


@pytest.mark.parametrize("url", ["http://u:hunter2@h:1", "http://h:1/?password=hunter2", "h:1#hunter2", "h;hunter2"])
def test_an_address_that_may_hold_a_secret_is_not_repeated(url: str) -> None:
    found = inspect(serving({"spec.cache": {"l2": {"type": "external", "url": url}}}), strict=True).faults
    assert found
    assert not [fault for fault in found if "hunter2" in str(fault)]
