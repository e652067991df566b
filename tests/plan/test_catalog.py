"""Which engine an object gets."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plan.support import faults, pair, render

from kvserving_operator.engines.catalog import resolve


def test_the_newest_tested_version_is_the_default() -> None:
    assert resolve(version=None, image=None, device="gpu", kvcached=False).image == "vllm/vllm-openai:v0.33.0"
    assert resolve(version=None, image=None, device="cpu", kvcached=False).version == "0.32.0"


def test_kvcached_takes_the_newest_version_that_it_patches() -> None:
    assert resolve(version=None, image=None, device="gpu", kvcached=True).version == "0.30.0"


def test_a_running_version_is_kept() -> None:
    kept = resolve(
        version=None, image=None, device="gpu", kvcached=False, observed_version="0.30.0", observed_image="i"
    )
    assert (kept.version, kept.image) == ("0.30.0", "i")


@pytest.mark.parametrize(
    ("installed", "version"), [("0.32.0+cpu", "0.32.0"), ("0.32.1rc1", "0.32.1"), ("dev", "0.33.0"), ("", "0.33.0")]
)
def test_an_installed_version_counts_as_its_release(installed: str, version: str) -> None:
    build = resolve(version=None, image=None, device="gpu", kvcached=False, observed_version=installed)
    assert build.version == version


def test_a_named_version_wins_over_the_running_one() -> None:
    named = resolve(version="0.33.0", image=None, device="gpu", kvcached=False, observed_version="0.30.0")
    assert named.image == "vllm/vllm-openai:v0.33.0"


def test_a_running_version_that_cannot_serve_the_object_is_not_kept() -> None:
    assert resolve(version=None, image=None, device="gpu", kvcached=True, observed_version="0.33.0").version == "0.30.0"


@pytest.mark.parametrize(
    ("image", "version", "assumed"),
    [
        ("vllm/vllm-openai:v0.30.0", "0.30.0", False),
        ("host:5000/mirror/vllm:0.31.0-cu13", "0.31.0", False),
        ("mirror/vllm:nightly", "0.33.0", True),
        ("host:5000/vllm", "0.33.0", True),
        ("vllm/vllm-openai:v0.29.1@sha256:" + "0" * 64, "0.29.1", False),
    ],
)
def test_the_version_of_an_image_is_read_from_its_tag(image: str, version: str, assumed: bool) -> None:
    build = resolve(version=None, image=image, device="gpu", kvcached=False)
    assert (build.version, build.image, build.assumed) == (version, image, assumed)
    reasons = {notice.reason.value for notice in render(pair(engine={"image": image})).plan.notices}
    assert ("EngineVersionAssumed" in reasons) is assumed


@pytest.mark.parametrize(
    ("version", "runner", "supported"),
    [
        ("0.24.0", "0", True),
        ("0.27.0", "0", True),
        ("0.28.0", None, True),
        ("0.29.0", "1", True),
        ("0.30.2", "1", True),
        ("0.31.0", "1", False),
        ("0.33.0", "1", False),
    ],
)
def test_kvcached_gate_and_runner_by_version(version: str, runner: str | None, supported: bool) -> None:
    build = resolve(version=version, image=None, device="gpu", kvcached=True)
    assert build.kvcached_supported is supported
    assert build.kvcached_runner == runner
    if supported:
        env = render({"engine": {"version": version}, "kvcached": {"enabled": True}}).decode.env
        assert env.get("VLLM_USE_V2_MODEL_RUNNER") == ("0" if runner == "0" else None)


@pytest.mark.parametrize(("version", "layout"), [("0.28.0", "HND"), ("0.29.0", "LBHNC"), ("0.33.0", "LBHNC")])
def test_layout_by_version(version: str, layout: str) -> None:
    assert render(pair(engine={"version": version})).plan.profile.layout == layout


@pytest.mark.parametrize(
    ("version", "reasons"),
    [
        ("0.33.0", set()),
        ("0.33.2", set()),
        ("0.25.0", {"EngineUntested", "ReducedEngineSupport"}),
        ("0.40.0", {"EngineUntested"}),
    ],
)
def test_what_was_not_tested_is_said(version: str, reasons: set[str]) -> None:
    assert {n.reason.value for n in render(pair(engine={"version": version})).plan.notices} == reasons


@pytest.mark.parametrize("version", ["0.24.0", "0.28.0", "0.29.0"])
def test_reads_that_outlast_their_lease_are_told_where_they_are_used(version: str) -> None:
    messages = "\n".join(str(notice) for notice in render(pair(engine={"version": version})).plan.notices)
    told = "spec.transfer.lease (30s) may bring another prompt's KV here, and the answer is wrong"
    assert (told in messages) is (version != "0.29.0")
    alone = "\n".join(str(notice) for notice in render({"engine": {"version": version}}).plan.notices)
    assert "lease" not in alone


@pytest.mark.parametrize(
    ("engine", "path", "told"),
    [
        ({"version": "0.20.0"}, "spec.engine.version", "vLLM 0.20.0 is older than 0.24.0, the oldest that works: use"),
        ({"image": "vllm/vllm-openai:v0.20.0"}, "spec.engine.image", "vLLM 0.20.0 is older than 0.24.0"),
        ({"image": "mirror.example:5000/x/mine:0.20.0-cu128"}, "spec.engine.image", "vLLM 0.20.0 is older"),
        (
            {"image": "vllm/vllm-openai:v0.20.0", "version": "0.33.0"},
            "spec.engine.image",
            "vllm/vllm-openai:v0.20.0 holds vLLM 0.20.0, and spec.engine.version is 0.33.0: name an image of that",
        ),
        (
            {"image": "mirror.example/a/vllm-openai-cpu:v0.31.0", "version": "0.32.0", "device": "cpu"},
            "spec.engine.image",
            "holds vLLM 0.31.0, and spec.engine.version is 0.32.0",
        ),
    ],
)
def test_the_field_that_carries_the_version_is_blamed(engine: dict[str, str], path: str, told: str) -> None:
    report = faults(pair(engine=engine))
    assert report.startswith(f"{path}: ")
    assert told in report
    assert len(report.splitlines()) == 1


@pytest.mark.parametrize(
    "engine",
    [
        {"image": "vllm/vllm-openai:v0.33.0-cu130", "version": "0.33.0"},
        {"image": "vllm/vllm-openai:nightly", "version": "0.33.0"},
        {"image": "mine.example/engine:1.2.3", "version": "0.33.0"},
        {"image": "vllm/vllm-openai@sha256:" + "a" * 64, "version": "0.33.0"},
    ],
)
def test_a_version_beside_an_image_that_says_no_other_is_taken(engine: dict[str, str]) -> None:
    assert faults(pair(engine=engine)) == ""
    assert render(pair(engine=engine)).plan.profile.engine_version == "0.33.0"


def test_notices_about_the_engine_name_the_field_that_carries_its_version() -> None:
    notices = render(pair(engine={"image": "vllm/vllm-openai:v0.27.0"})).plan.notices
    assert {notice.path for notice in notices} == {"spec.engine.image"}


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ({"kv": {"dtype": "fp9"}}, "'fp9' is no type of KV of vLLM 0.33.0: use auto, float16, bfloat16, fp8, "),
        ({"kv": {"dtype": "FP8"}}, "'FP8' is no type of KV of vLLM 0.33.0: use "),
        ({"kv": {"dtype": "octave_k3v4"}, "version": "0.30.0"}, "'octave_k3v4' is no type of KV of vLLM 0.30.0: use "),
        ({"kv": {"dtype": "octave_k3v4"}}, None),
        ({"kv": {"dtype": "nvfp4"}}, None),
        (
            {"kv": {"dtype": "nvfp4"}, "device": "cpu"},
            "'nvfp4' is no type of KV of vLLM 0.32.0 on a CPU: use auto, float16, bfloat16, fp8, fp8_e4m3, fp8_e5m2",
        ),
        ({"kv": {"dtype": "fp8"}, "device": "cpu"}, None),
        ({"kv": {"dtype": "fp8_e5m2"}, "version": "0.29.0"}, None),
        # What was not read is not refused: it may be there.
        ({"kv": {"dtype": "fp9"}, "version": "0.40.0"}, None),
        ({"kv": {"dtype": "fp9"}, "version": "0.26.0"}, None),
        ({"kv": {"dtype": "fp9"}, "image": "mine.example/fork:1", "version": "0.33.0"}, None),
    ],
)
def test_a_type_of_kv_that_the_engine_would_refuse_is_refused_before_it_starts(
    engine: dict[str, Any], told: str | None
) -> None:
    report = faults(pair(engine=engine))
    assert (report == "") if told is None else report.startswith(f"spec.engine.kv.dtype: {told}")
    assert len(report.splitlines()) == (told is not None)


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ({}, "100 is no multiple of 32, and vLLM 0.32.0 attends on a CPU to no others: use 96 or 128"),
        (
            {"kv": {"blockSize": 8}},
            "8 is no multiple of 32, and vLLM 0.32.0 attends on a CPU to no others: use 32, or auto",
        ),
        ({"version": "0.28.0", "kv": {"blockSize": 100}}, "100 is no multiple of 16"),
        ({"version": "0.28.0", "kv": {"blockSize": 48}}, None),
        ({"kv": {"blockSize": 96}}, None),
        ({"kv": {"blockSize": "auto"}}, None),
        ({"device": "gpu"}, None),
        # What was not read is not refused.
        ({"version": "0.40.0"}, None),
        ({"image": "mine.example/fork:1", "version": "0.32.0"}, None),
    ],
)
def test_blocks_that_no_attention_on_a_cpu_takes_are_refused_before_the_engine_loads(
    engine: dict[str, Any], told: str | None
) -> None:
    asked = {"device": "cpu", "kv": {"blockSize": 100}} | engine
    report = faults(pair(engine=asked, model={"uri": "hf://Qwen/Qwen3-8B"}))
    assert (report == "") if told is None else report.startswith(f"spec.engine.kv.blockSize: {told}")


def test_blocks_of_a_model_whose_attention_is_not_known_or_has_a_size_of_its_own_are_not_refused() -> None:
    engine = {"device": "cpu", "kv": {"blockSize": 100}}
    for model in ("hf://me/unknown", "hf://deepseek-ai/DeepSeek-V3"):
        assert "blockSize" not in faults(pair(engine=engine, model={"uri": model}))
