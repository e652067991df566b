"""What the plan refuses of one document, ``kvserving validate`` refuses too: the same fields in the same words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests import specs
from tests.plan.test_refusals import OTHERS, PLAN_CASES

from kvserving_operator import cli
from kvserving_operator.api.load import inspect
from kvserving_operator.plan.planning import check

ASKED = ("--device", "h100", "--prompt-tokens", "4000", "--output-tokens", "300", "--rate", "8")
RELATIVE = "file://models/x"


@pytest.fixture(autouse=True)
def _no_models_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def document(spec: dict[str, Any]) -> str:
    """The text of an object of ``spec``, which has both roles and a model unless it says otherwise."""
    head = {"apiVersion": "kvserving.dev/v1alpha1", "kind": "KVServing", "metadata": {"name": "qwen"}}
    whole = {"model": {"uri": "hf://Qwen/Qwen3-8B"}, "prefill": {"replicas": 1}, "decode": {"replicas": 1}, **spec}
    return yaml.safe_dump({**head, "spec": whole})


def validated(file: Path, text: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What ``validate`` says of an object of this text."""
    file.write_text(text)
    status = cli.run(["validate", "-o", "json", str(file)])
    [said] = json.loads(capsys.readouterr().out)
    assert status == (0 if said["valid"] else 1)
    found: dict[str, Any] = said
    return found


DOCUMENTS = [
    *(pytest.param(case.text, id=case.path.stem) for case in PLAN_CASES),
    *(
        pytest.param(document(spec), id=f"{words[0]} {words[-1]}")
        for spec, words in OTHERS
        if spec.get("model") != {"uri": RELATIVE}
    ),
]


@pytest.mark.parametrize("text", DOCUMENTS)
def test_validate_refuses_what_the_plan_refuses(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reading = inspect(text, strict=True)
    assert reading.serving is not None
    refused = {(f.path, f.message, f.value) for f in (*reading.faults, *check(reading.serving))}
    assert refused
    faults = validated(tmp_path / "object.yaml", text, capsys)["faults"]
    assert {(f["path"], f["message"], f["value"]) for f in faults} == refused


def test_the_table_of_refusals_is_gone_over_whole() -> None:
    assert len(DOCUMENTS) == len(specs.refused("plan")) + len(OTHERS) - 1


def test_a_relative_path_of_a_file_is_this_machines_and_told_as_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = validated(tmp_path / "object.yaml", document({"model": {"uri": RELATIVE}}), capsys)
    assert ("spec.model.uri", "relative to this machine: `kvserving up` takes it, `kubectl apply` does not") in [
        (notice["path"], notice["message"]) for notice in said["notices"]
    ]


LONG = "--max-model-len 50,000 is above 40,960, the longest context of hf://Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("spec", "path", "said"),
    [
        ({"engine": {"args": ["--seed=1", f"{flag}={value}"]}}, "spec.engine.args[1]", f"{flag} needs a")
        for flag in ("--gpu-memory-utilization", "--max-num-seqs", "--max-num-batched-tokens", "--max-model-len")
        for value in ("NaN", "nan", "Infinity", "inf", "-inf", "0", "-0.5", "1e999")
    ]
    + [
        ({"prefill": {"args": ["--max-num-seqs", "nan"]}}, "spec.prefill.args[0]", "--max-num-seqs needs a"),
        ({"prefill": {"args": ["--max-num-batched-tokens=-1"]}}, "spec.prefill.args[0]", "--max-num-batched-tokens n"),
        ({"decode": {"args": ["--max-num-seqs"]}}, "spec.decode.args[0]", "--max-num-seqs needs a"),
        ({"decode": {"args": ["--max-num-seqs="]}}, "spec.decode.args[0]", "--max-num-seqs needs a"),
        ({"engine": {"args": ["--max_num_seqs=inf"]}}, "spec.engine.args[0]", "--max-num-seqs needs a"),
        ({"engine": {"args": ["--gpu-mem=2"]}}, "spec.engine.args[0]", "--gpu-memory-utilization needs a"),
        ({"engine": {"args": ["--max-model-len=50000"]}}, "spec.engine.args", LONG),
        ({"decode": {"args": ["--max-model-len=50k"]}}, "spec.decode.args", LONG),
        (
            {"kvcached": {"enabled": True}, "engine": {"args": ["--max-num-seqs=nan"]}},
            "spec.engine.args[0]",
            "--max-nu",
        ),
    ],
)
def test_validate_and_plan_say_the_same_of_a_number_that_vllm_refuses(
    spec: dict[str, Any], path: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "object.yaml"
    faults = validated(file, document(spec), capsys)["faults"]
    assert [fault["path"] for fault in faults] == [path]
    assert faults[0]["message"].startswith(said)
    assert faults[0]["message"].endswith(("or remove the flag", "by --hf-overrides in spec.engine.args"))
    assert cli.run(["plan", str(file), *ASKED]) == 1
    assert capsys.readouterr().err == f"error: {path}: {faults[0]['message']}\n"


@pytest.mark.parametrize(
    "args",
    [
        ["--max-model-len=auto"],
        ["--max-model-len", "-1"],
        ["--max-model-len=32K"],
        ["--max-num-seqs=1", "--max-num-batched-tokens=25.6k"],
    ],
)
def test_what_vllm_takes_is_valid(args: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert validated(tmp_path / "object.yaml", document({"engine": {"args": args}}), capsys)["faults"] == []


def test_a_model_that_is_here_tells_how_long_its_context_may_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    config = {"model_type": "qwen3", "num_hidden_layers": 2, "max_position_embeddings": 1000}
    spec = {"model": {"uri": "file://model"}, "engine": {"args": ["--max-model-len=3000"]}}
    (model / "config.json").write_text(json.dumps(config))
    [fault] = validated(tmp_path / "object.yaml", document(spec), capsys)["faults"]
    assert fault["message"].startswith(f"--max-model-len 3,000 is above 1,000, the longest context of file://{model}")
    scaled = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1000}
    (model / "config.json").write_text(json.dumps({**config, "rope_scaling": scaled}))
    assert validated(tmp_path / "object.yaml", document(spec), capsys)["faults"] == []


def test_a_word_that_may_be_a_secret_is_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"engine": {"args": ["--max-num-seqs=sk-0123456789abcdef"]}}
    [fault] = validated(tmp_path / "object.yaml", document(spec), capsys)["faults"]
    assert fault["value"] is None
    assert "and what is given is not such a value: write --max-num-seqs=256" in fault["message"]
    assert "sk-0" not in json.dumps(fault)


def test_a_form_that_is_wrong_hides_what_a_plan_finds_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "object.yaml"
    flags = {"engine": {"args": ["--max-model-len=abc"]}}
    file.write_text(document({**flags, "transfer": {"lease": 5}}))
    assert cli.run(["validate", str(file)]) == 1
    said = capsys.readouterr()
    assert "spec.transfer.lease" in said.out
    assert "what this vLLM does not take, is told once the faults are mended" in said.err
    file.write_text(document(flags))
    assert cli.run(["validate", str(file)]) == 1
    assert capsys.readouterr().err == ""
