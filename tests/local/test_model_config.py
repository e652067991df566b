"""What this machine has of a model: what is not there, and what is there and cannot be read, with the reason."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvserving_operator.api.faults import InvalidSpec
from kvserving_operator.api.v1alpha1 import Model
from kvserving_operator.local import model_config, model_weights
from kvserving_operator.local.errors import EnvironmentFault

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


def refusal(folder: Path) -> str:
    with pytest.raises(InvalidSpec) as refused:
        model_config.read(folder)
    said = str(refused.value)
    assert said.startswith(str(folder / "config.json"))
    return said.removeprefix(str(folder / "config.json"))


def _link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def _text(text: str | bytes) -> Callable[[Path], int]:
    return lambda path: path.write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_text("["), " is there and cannot be read: it is no JSON in UTF-8 (Expecting value"),
        (_text("\n"), " is there and cannot be read: it is empty"),
        (_text("[]"), " is there and cannot be read: it holds no JSON object"),
        (_text("\ufeff{}"), " is there and cannot be read: it is no JSON in UTF-8 (Unexpected UTF-8 BOM"),
        (_text(b"\xff\xfe{}"), " is there and cannot be read: it is no JSON in UTF-8 ("),
        (_text("[" * 200_000), " is there and cannot be read: it is nested too deeply"),
        (_text('{"a":' * 200_000), " is there and cannot be read: it is nested too deeply"),
        (
            _text(f'{{"a": {"9" * 5000}}}'),
            " is there and cannot be read: it is no JSON in UTF-8 (a number has 5,000 dig",
        ),
        (Path.mkdir, " is there and cannot be read: Is a directory"),
        (_link("config.json"), " is there and cannot be read: Too many levels of symbolic links"),
        (_link("nowhere"), " is a link to a file that is not there"),
        (_link("/dev/zero"), " is no regular file: put the model's own there"),
        (os.mkfifo, " is no regular file: put the model's own there"),
    ],
)
def test_a_configuration_that_is_there_and_cannot_be_read_is_told(
    make: Callable[[Path], Any], said: str, tmp_path: Path
) -> None:
    make(tmp_path / "config.json")
    assert refusal(tmp_path).startswith(said)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(2**40)
    assert refusal(tmp_path).startswith(" has more than 16 MiB, which no file of settings has")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_attention_heads": 0}, ": num_attention_heads 0 is no number from 1 to 100,000,000: download the model"),
        ({"num_hidden_layers": -3}, ": num_hidden_layers -3 is no number from 1 to 100,000,000"),
        ({"num_hidden_layers": 10**400}, ": num_hidden_layers 1000000"),
        ({"text_config": {"hidden_size": 10**200}}, ": hidden_size 1000000"),
        ({"model_type": ["llama"]}, ": model_type ['llama'] is no text"),
        ({"layer_types": ["full_attention", ["x"]]}, ": layer_types holds ['x'], which is no kind of a layer"),
        ({"sliding_window": -1024}, ": sliding_window -1024 is no number from -1 to 100,000,000"),
        (
            {"num_local_experts": 8, "num_experts_per_tok": 80},
            ": num_experts_per_tok 80 is above num_local_experts 8: download the model again, or correct the file",
        ),
        ({"first_k_dense_replace": 33}, ": first_k_dense_replace 33 is above num_hidden_layers 32"),
    ],
)
def test_what_no_model_can_have_is_told_by_key_value_and_reason(
    changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | changed))
    assert refusal(tmp_path).startswith(said)
    with pytest.raises(InvalidSpec, match=r"config\.json: "):
        model_config.facts(Model(uri=f"file://{tmp_path}"))


def test_what_models_do_have_is_taken(tmp_path: Path) -> None:
    usual = LLAMA | {"head_dim": None, "sliding_window": -1, "num_local_experts": 0, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(usual | {"sliding_window_pattern": "LLLG"}))
    facts = model_config.facts(Model(uri=f"file://{tmp_path}"))
    assert facts is not None
    assert (facts.layers, facts.head_dim) == (32, 128)


def test_every_fault_of_a_configuration_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"hidden_size": 0, "head_dim": -128}))
    assert len(refusal(tmp_path).splitlines()) == 2


def test_a_name_that_no_file_can_have_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert model_config.folder_of(f"hf://{'x' * 5000}/y") is None
    assert model_config.folder_of("hf://o/m", "r" * 300) is None
    assert model_config.read(tmp_path / ("x" * 300)) is None
    assert model_weights.weights_bytes(tmp_path / ("x" * 300)) == 0


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME"])
@pytest.mark.parametrize(
    ("path", "said"), [("~nosuchuser/x", "~nosuchuser/x cannot be resolved"), ("/tmp/" + "x" * 300, "cannot be looked")]
)
def test_a_cache_that_cannot_be_is_told_by_its_variable(
    variable: str, path: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv(variable, path)
    with pytest.raises(EnvironmentFault, match=f"^{variable}: .*{said}"):
        model_config.folder_of("hf://o/m")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"../../secret", b"x" * 9000])
def test_a_reference_that_names_no_commit_is_told(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    reference = tmp_path / "models--o--m" / "refs" / "main"
    reference.parent.mkdir(parents=True)
    reference.write_bytes(content)
    with pytest.raises(InvalidSpec, match=r"refs/main is there and names no commit: download the model again"):
        model_config.folder_of("hf://o/m")
