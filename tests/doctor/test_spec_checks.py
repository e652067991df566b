"""What is told of an object alone, before it is applied."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.doctor.rendered import examples
from tests.doctor.world import COMMIT, SPEC
from tests.plan.support import edited, pair, serving

from kvserving_operator.api import load
from kvserving_operator.doctor import checks
from kvserving_operator.doctor.findings import Finding, Severity, failed
from kvserving_operator.doctor.gather_object import of_reading


def told(spec: Mapping[str, Any]) -> dict[str, Finding]:
    reading = load.inspect(
        {
            "apiVersion": "kvserving.dev/v1alpha1",
            "kind": "KVServing",
            "metadata": {"name": "qwen"},
            "spec": dict(spec),
        },
        strict=True,
    )
    return {finding.check: finding for finding in checks.of_object(of_reading(reading, local=False))}


def test_an_object_without_a_flaw_has_no_finding() -> None:
    assert told(SPEC) == {}


@pytest.mark.parametrize(
    ("path", "value", "check", "where", "severity"),
    [
        ("engine.image", "mirror/vllm:v0.30.0", "image-version", "spec.engine.image", "error"),
        ("engine.image", "mirror/vllm:latest", "image-moves", "spec.engine.image", "warning"),
        ("engine.image", "mirror:5000/vllm", "image-moves", "spec.engine.image", "warning"),
        ("model.revision", "main", "weights-move", "spec.model.revision", "warning"),
        ("model.cache", None, "weights-downloaded-again", "spec.model.cache", "info"),
        ("engine.args", ["--no-enable-prefix-caching"], "prefix-cache-off", "spec.engine.args", "warning"),
        ("decode.args", ["--max-model-len=4096"], "lengths-differ", "spec.decode.args", "warning"),
        ("transfer.rdma.resource", None, "transfer-over-tcp", "spec.transfer.rdma", "warning"),
        ("transfer.lease", "5s", "lease-short", "spec.transfer.lease", "warning"),
        ("transfer.onFailure", "recompute", "recompute", "spec.transfer.onFailure", "info"),
        ("cache.l1.size", "1Gi", "l1-small", "spec.cache.l1.size", "warning"),
        ("cache.l2.size", "8Gi", "l2-smaller-than-l1", "spec.cache.l2.size", "warning"),
        ("networkPolicy.enabled", False, "network-policy-off", "spec.networkPolicy.enabled", "warning"),
        *(
            ("engine.env", [{"name": "UCX_TLS", "value": tls}], "ucx-without-cuda", "spec.engine.env[UCX_TLS]", "error")
            for tls in ("tcp", "^cuda_copy")
        ),
        ("engine.version", "0.31.0", "notice-EngineUntested", "spec.engine.version", "info"),
        ("router.type", "vllm-router", "notice-RouterOpen", "spec.router.type", "warning"),
        (
            "prefill.template",
            {"spec": {"hostNetwork": True}},
            "notice-PolicyWithoutEffect",
            "spec.networkPolicy.enabled",
            "warning",
        ),
        ("prefill.nodes", 2, "spec-invalid", "spec.prefill.nodes", "error"),
    ],
)
def test_a_known_mistake_is_told_with_its_field(path: str, value: Any, check: str, where: str, severity: str) -> None:
    found = told(edited(SPEC, path, value))
    assert check in found
    assert (found[check].where, found[check].severity) == (where, Severity(severity))
    assert found[check].why
    assert found[check].fix
    assert "the sentence" not in found[check].fix or check == "spec-invalid"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("engine.image", "mirror/vllm:v0.33.0-cu129"),
        ("engine.image", "mirror/vllm:v0.33.0@sha256:" + "a" * 64),
        ("model", {"uri": "pvc://weights/qwen"}),
        ("engine.args", ["--enable-prefix-caching"]),
        ("engine.args", ["--max-model-len=4096"]),
        *(("engine.env", [{"name": "UCX_TLS", "value": tls}]) for tls in ("tcp,cuda_copy", "all", "^gga")),
        ("cache.l1.size", "6Gi"),
    ],
)
def test_settings_that_only_look_like_a_mistake_are_let_be(path: str, value: Any) -> None:
    found = told(edited(SPEC, path, value))
    assert not {name for name in found if not name.startswith("notice-")}


def test_tcp_between_gpus_of_one_node_is_told_where_it_matters() -> None:
    why = told(edited(SPEC, "transfer.rdma.resource", None))["transfer-over-tcp"].why
    assert "between GPUs of one node it moves over their NVLinks, and by TCP as well where they have none" in why


def test_nothing_is_said_of_tcp_between_nodes_where_there_is_one_machine() -> None:
    spec = edited(edited(SPEC, "transfer.rdma.resource", None), "transfer.lease", "5s")
    reading = load.inspect(
        {"apiVersion": "kvserving.dev/v1alpha1", "kind": "KVServing", "metadata": {"name": "qwen"}, "spec": spec},
        strict=True,
    )
    found = {finding.check for finding in checks.of_object(of_reading(reading, local=True))}
    assert "transfer-over-tcp" not in found
    assert "lease-short" in found


def test_the_size_that_l1_needs_is_the_models_own_arithmetic() -> None:
    # Qwen3-8B: 36 layers, 8 KV heads of 128, keys and values, two bytes: 147,456 bytes a token, 40,960 tokens.
    text = told(edited(SPEC, "cache.l1.size", "5Gi"))["l1-small"].what
    assert "36,408 tokens" in text
    assert "147,456 bytes" in text
    assert "40,960" in text
    assert "l1-small" not in told(edited(edited(SPEC, "cache.l1.size", "5Gi"), "engine.kv.dtype", "fp8"))
    assert "l1-small" not in told(edited(edited(SPEC, "cache.l1.size", "1Gi"), "engine.args", ["--max-model-len=4096"]))


def test_ranks_that_hold_copies_of_a_latent_vector_each_count() -> None:
    # DeepSeek-V3: 61 layers, one vector of 512 + 64, two bytes: 70,272 bytes a token in each rank, 163,840 tokens.
    spec = edited(edited(SPEC, "model.uri", "hf://deepseek-ai/DeepSeek-V3"), "cache.l1.size", "12Gi")
    assert "l1-small" not in told(spec)
    found = told(edited(spec, "prefill.parallelism", {"tensor": 2}))["l1-small"]
    assert "12Gi holds 91,678 tokens of prefill's KV (140,544 bytes each, over 2 ranks)" in found.what
    assert found.fix == "give it several times 21.4Gi, or leave cache.l1 out"


def test_heads_that_are_divided_among_ranks_count_once_and_copies_of_them_each() -> None:
    def each(**parallel: int) -> str:
        spec = edited(edited(SPEC, "cache.l1", {"size": "1Gi", "roles": ["decode"]}), "decode.parallelism", parallel)
        return told(spec)["l1-small"].what.partition("(")[2].partition(")")[0]

    assert each(tensor=1) == "147,456 bytes each"
    assert each(tensor=4) == "147,456 bytes each, over 4 ranks"
    assert each(tensor=16) == "294,912 bytes each, over 16 ranks"


def test_a_model_that_is_loaded_wider_has_wider_kv_unless_its_type_is_named() -> None:
    spec = edited(edited(SPEC, "cache.l1.size", "1Gi"), "engine.args", ["--dtype=float32"])
    assert "294,912 bytes" in told(spec)["l1-small"].what
    assert "147,456 bytes" in told(edited(spec, "engine.kv.dtype", "bfloat16"))["l1-small"].what


def test_an_aggregated_object_is_told_nothing_about_transfers() -> None:
    spec = {key: value for key, value in SPEC.items() if key not in ("prefill", "transfer")}
    assert told(spec) == {}


@pytest.mark.parametrize("path", examples(), ids=lambda path: path.name)
def test_no_example_has_an_error(path: Path) -> None:
    assert not failed(checks.of_object(of_reading(load.inspect_file(path), local=False)))


def test_every_fault_of_an_object_is_an_error_and_nothing_else_is_judged() -> None:
    found = [
        *checks.of_object(
            of_reading(
                load.inspect("apiVersion: kvserving.dev/v1alpha1\nkind: KVServing\nspec: {mode: 1}", strict=True),
                local=False,
            )
        )
    ]
    assert {finding.check for finding in found} == {"spec-invalid"}
    assert {"metadata", "spec.mode", "spec.model"} <= {finding.where for finding in found}
    assert failed(found)


def test_what_is_wrong_with_the_files_of_a_model_stands_in_place_of_what_is_not_known_of_it() -> None:
    body = {"apiVersion": "kvserving.dev/v1alpha1", "kind": "KVServing", "metadata": {"name": "qwen"}, "spec": {
        "model": {"uri": "file:///no/such/model"}, "prefill": {}}}  # fmt: skip
    found = {
        finding.check: finding for finding in checks.of_object(of_reading(load.inspect(body, strict=True), local=True))
    }
    assert found["model-files"].what == "/no/such/model does not exist"
    assert found["model-files"].fix == "name the folder of a model, as file:///path/to/model"
    assert "notice-ModelFactsUnknown" not in found


def test_a_token_in_a_wrong_field_is_not_shown() -> None:
    token = "hf_" + "a" * 30
    reading = load.inspect(
        {
            "apiVersion": "kvserving.dev/v1alpha1",
            "kind": "KVServing",
            "metadata": {"name": "qwen"},
            "spec": {**SPEC, "engine": {"args": [f"--hf-token={token}", token]}},
        },
        strict=True,
    )
    found = checks.of_object(of_reading(reading, local=False))
    assert failed(found)
    assert token not in str([finding.to_json() for finding in found])


def test_warnings_do_not_fail() -> None:
    found = tuple(told(edited(SPEC, "model.revision", "main")).values())
    assert found
    assert not failed(found)
    assert serving(pair()).spec.model.revision != COMMIT


def test_a_store_in_a_folder_that_the_disk_does_not_hold_is_told_before_it_is_brought_up() -> None:
    def found(size: str, *, local: bool) -> dict[str, Finding]:
        body = {"apiVersion": "kvserving.dev/v1alpha1", "kind": "KVServing", "metadata": {"name": "qwen"}, "spec": {
            "model": {"uri": "file:///no/such/model"}, "prefill": {},
            "cache": {"l2": {"type": "filesystem", "size": size}}}}  # fmt: skip
        facts = of_reading(load.inspect(body, strict=True), local=local)
        return {finding.check: finding for finding in checks.of_object(facts)}

    told = found("1Ei", local=True)["store-room"]
    assert "of spec.cache.l2.size = " in told.what
    assert "make spec.cache.l2.size smaller" in told.fix
    assert "store-room" not in found("1Mi", local=True)
    assert "store-room" not in found("1Ei", local=False)
