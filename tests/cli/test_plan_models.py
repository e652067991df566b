"""What ``kvserving plan`` and its neighbours say of a model that is here: its files, read or refused by name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.sizing.test_models import QWEN3_8B

from kvserving_operator import cli

ASKED = ("--device", "h100", "--prompt-tokens", "4000", "--output-tokens", "300", "--rate", "8")
OBJECT: dict[str, Any] = {
    "apiVersion": "kvserving.dev/v1alpha1",
    "kind": "KVServing",
    "metadata": {"name": "x"},
    "spec": {"model": {"uri": "hf://Qwen/Qwen3-8B"}, "prefill": {}, "decode": {}},
}


@pytest.fixture(autouse=True)
def _no_models_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def run(*arguments: str) -> int:
    return cli.run(["plan", *arguments])


def folder(path: Path, files: dict[str, int] | None = None, **changed: Any) -> str:
    """A model's folder; its weights take no room on the disk."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(QWEN3_8B | changed))
    for name, size in (files or {}).items():
        with (path / name).open("wb") as file:
            file.truncate(size)
    return str(path)


def written(path: Path, uri: str = "hf://Qwen/Qwen3-8B", **spec: Any) -> str:
    body = OBJECT | {"spec": OBJECT["spec"] | {"model": {"uri": uri}} | spec}
    path.write_text(yaml.safe_dump(body))
    return str(path)


def sized(model: str, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], list[str]]:
    """The entry for weights, and the notices."""
    assert run(model, *ASKED, "-o", "json") == 0
    told = capsys.readouterr()
    [weights] = [entry for entry in json.loads(told.out)["inputs"] if entry["name"] == "weights"]
    return weights, told.err.splitlines()


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"model-00001-of-00001.safetensors": 16_380_000_000, "consolidated.safetensors": 16_380_000_000},
        {"model.safetensors": 16_380_000_000, "pytorch_model.bin": 16_380_000_000},
        {"model-00001-of-00004.safetensors": 4_000_000_000},
    ],
)
def test_weights_are_counted_once_and_whole(
    files: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, notices = sized(folder(tmp_path / "model", files), capsys)
    assert (weights["text"], weights["basis"], notices) == ("16.38 GB", "specified", [])


def test_the_index_in_the_hubs_cache_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = tmp_path / "hub" / "models--Qwen--Qwen3-8B"
    (repository / "refs").mkdir(parents=True)
    (repository / "snapshots").mkdir()
    (repository / "refs" / "main").write_text("abc")
    folder(repository / "snapshots" / "abc", {"model-00001-of-00005.safetensors": 4_000_000_000})
    index = repository / "snapshots" / "abc" / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 16_400_000_000}}))
    weights, notices = sized("Qwen/Qwen3-8B", capsys)
    assert (weights["text"], weights["source"], notices) == ("16.4 GB", "config.json and weight files here", [])


def test_files_that_do_not_fit_the_parameters_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights, [notice] = sized(folder(tmp_path / "model", {"model.safetensors": 4_000_000_000}), capsys)
    assert (weights["text"], weights["basis"]) == ("16.38 GB", "assumed")
    assert notice == (
        "notice: weights: the files here tell 4 GB, and the parameters at 2 bytes each take 16.38 GB: the larger is "
        "taken (--fact weights=… replaces it)"
    )


@pytest.mark.parametrize(
    ("changed", "length", "status"),
    [
        ({}, "40961", 1),
        ({}, "40960", 0),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
            "131072",
            0,
        ),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "131072", 1),
    ],
)
def test_a_context_is_as_long_as_vllm_accepts(
    changed: dict[str, Any], length: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = folder(tmp_path / "model", **changed)
    assert run(model, *ASKED, "--max-model-len", length, "-o", "yaml") == status
    said = f"error: --max-model-len: {int(length):,} is above 40,960, the longest context of file://{model}, and vLLM"
    assert (said in capsys.readouterr().err) == bool(status)
    assert run(model, *ASKED, "--max-model-len", length, "--fact", "maxLength=200000", "-o", "yaml") == 0


def test_arguments_of_a_role_bound_the_context(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = {"args": ["--max-model-len=2000"]}
    file = written(tmp_path / "object.yaml", prefill=short, decode=short)
    assert run(file, *ASKED, "-o", "yaml") == 1
    said = capsys.readouterr().err
    assert "4,300, and hf://Qwen/Qwen3-8B has a longest context of 2,000: ask for less, raise --max-model-len" in said
    assert run(file, *ASKED, "--max-model-len", "8000", "-o", "yaml") == 0


def test_a_configuration_that_cannot_be_used_is_told_by_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = folder(tmp_path / "model")
    file = written(tmp_path / "object.yaml", "file:./model")
    config = tmp_path / "model" / "config.json"
    commands = (("plan", model, *ASKED), ("validate", file), ("doctor", file, "--site", "local", "-o", "json"))
    for content, reason in (
        ('{"a":' * 200_000, " is there and cannot be read: it is nested too deeply: download the model again"),
        (json.dumps(QWEN3_8B | {"num_attention_heads": 0}), ": num_attention_heads 0 is no number from 1 to 100,"),
    ):
        config.write_text(content)
        for command in commands:
            assert cli.run([*command]) == 1, command
            told = capsys.readouterr()
            assert f"{config}{reason}" in told.out + told.err, command
    config.unlink()
    os.mkfifo(config)
    for command in commands:
        assert cli.run([*command]) == 1, command
        told = capsys.readouterr()
        assert f"{config} is no regular file" in told.out + told.err, command


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("~nosuchuser/x",), 1, "error: MODEL: '~nosuchuser/x' is no address, no folder here and no owner/name"),
        (("x" * 5000 + "/y",), 1, "error: MODEL: has 5007 characters: at most 1024 are allowed"),
        (("hf://" + "x" * 900 + "/y",), 1, "its configuration is not on this machine"),
        (("Qwen/Qwen3-8B", "--fact", "hidden=1e400"), 1, "error: --fact: hidden: '1e400' is too large"),
        (("Qwen/Qwen3-8B", "--fact", "layers=1e300"), 1, "error: --fact: layers: '1e300' is above 100,000,000"),
        (("Qwen/Qwen3-8B", "--fact", "stateBytes=1e400"), 1, "error: --fact: stateBytes: '1e400' is too large"),
        (("Qwen/Qwen3-8B", "--fact", "parameters=1e400"), 1, "error: --fact: parameters: '1e400' is too large"),
        (("Qwen/Qwen3-8B", "--fact", "layers=3", "--fact", "layers=4"), 1, "error: --fact: layers is given twice"),
        (
            ("Qwen/Qwen3-8B", "--tensor", "1", "--kv-tokens", "9" * 400),
            2,
            "is too large: 1,000,000,000,000,000",
        ),
        (("Qwen/Qwen3-8B", "--prompt-tokens", "\u0661\u0662"), 2, "is no whole number: write it as 4000 or 4,000"),
        (("Qwen/Qwen3-8B", "--prompt-tokens", "1_0"), 2, "'1_0' is no whole number"),
        (("Qwen/Qwen3-8B", "--rate", "1_0"), 2, "'1_0' is no number"),
        (("Qwen/Qwen3-8B", "--rate", "nan"), 2, "'nan' is no number"),
        (
            ("Qwen/Qwen3-8B", "--rate", "1e7"),
            1,
            "error: --rate: 1e+07 requests a second need 605,0",
        ),
        (("Qwen/Qwen3-8B", "--itl", "9" * 400 + "h"), 2, "is too long: 9999h at most"),
        (("Qwen/Qwen3-8B", "--max-model-len", "0"), 1, "error: --max-model-len: 0 is no length of a context"),
    ],
)
def test_values_that_none_can_have_are_told(
    arguments: tuple[str, ...], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*ASKED, *arguments) == status
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("cache", ["~nosuchuser/x", "/" + "x" * 300])
def test_a_cache_that_cannot_be_is_told(
    cache: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", cache)
    assert run("Qwen/Qwen3-8B", *ASKED) == 3
    assert capsys.readouterr().err.startswith(f"error: HF_HUB_CACHE: {cache} cannot be ")
