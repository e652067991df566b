"""``kvserving plan``: its forms, its errors, and the page that shows it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.documents.pages import blocks
from tests.documents.shell import calls

from kvserving_operator import cli

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "sizing.md"
LENGTHS = ("--prompt-tokens", "4000", "--output-tokens", "300", "--rate", "2.5")
_EXAMPLE = re.compile(r"```console\n\$ kvserving (plan [^\n]+)\n(.*?)```", re.DOTALL)


@pytest.fixture(autouse=True)
def _no_models_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def run(*arguments: str) -> int:
    return cli.run(["plan", *arguments])


def test_the_examples_of_the_page_are_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    examples = _EXAMPLE.findall(PAGE.read_text())
    assert len(examples) == 2
    for command, shown in examples:
        assert cli.run(command.split()) == 0
        # Where this fails, put what is printed into the page.
        assert shown == capsys.readouterr().out


def test_the_page_names_every_option_and_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    options = set(re.findall(r"(--[a-z0-9-]+)", capsys.readouterr().out.partition("Options:")[2]))
    text = PAGE.read_text()
    unnamed = {"--help", "--no-arithmetic", "--arithmetic", "--output"}
    assert [option for option in sorted(options - unnamed) if option not in text] == []
    from kvserving_operator.sizing.devices import DEVICES

    assert ", ".join(f"`{name}`" for name in DEVICES) in text


def test_yaml_is_an_object_that_validate_accepts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("Qwen/Qwen3-8B", "--device", "h100", *LENGTHS, "--reused", "0.5", "-o", "yaml") == 0
    file = tmp_path / "sized.yaml"
    file.write_text(capsys.readouterr().out)
    assert cli.run(["validate", str(file)]) == 0
    made = yaml.safe_load(file.read_text())
    assert made["metadata"]["name"] == "qwen3-8b"
    assert made["spec"]["model"] == {"uri": "hf://Qwen/Qwen3-8B"}
    assert made["spec"]["cache"] == {"l1": {"size": "42Gi"}, "l2": {"size": "243Gi"}}


def test_a_file_keeps_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = ROOT / "examples" / "gpu-worker-tiers.yaml"
    assert run(str(example), "--device", "h100", *LENGTHS, "-o", "yaml") == 0
    made = yaml.safe_load(capsys.readouterr().out)
    assert made["spec"]["cache"] == yaml.safe_load(example.read_text())["spec"]["cache"]
    assert made["spec"]["prefill"] == {"replicas": 1, "parallelism": {"tensor": 2}}


def test_json_has_the_inputs_the_lines_and_the_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("Qwen/Qwen3-8B", "--device", "h200", *LENGTHS, "-o", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["devices"] == 2
    values = {line["name"]: line["value"] for line in told["lines"]}
    assert told["ttft"] == values["time to first token, mean"]
    assert told["itl"] == values["time between tokens, mean"]
    assert values["KV of a token"] == 147_456
    assert told["object"]["spec"]["decode"] == {"replicas": told["decode"]["replicas"]}
    assert {entry["basis"] for entry in told["inputs"]} == {"specified", "assumed"}


def test_the_type_of_the_cache_is_in_the_arithmetic_and_in_the_object(capsys: pytest.CaptureFixture[str]) -> None:
    for written, each in (("bfloat16", 147_456), ("fp8", 73_728)):
        assert run("Qwen/Qwen3-8B", "--device", "h100", *LENGTHS, "--kv-dtype", written, "-o", "json") == 0
        told = json.loads(capsys.readouterr().out)
        assert {line["name"]: line["value"] for line in told["lines"]}["KV of a token"] == each
        assert told["object"]["spec"]["engine"]["kv"] == {"dtype": written}


@pytest.mark.parametrize(
    ("written", "missing"),
    [
        ((), ["MODEL|FILE", "--device", "--prompt-tokens", "--output-tokens", "--rate"]),
        (("x", "--device=h100"), ["--prompt-tokens", "--output-tokens", "--rate"]),
        (("--device", "h100", *LENGTHS[:-2]), ["MODEL|FILE", "--rate"]),
    ],
)
def test_all_that_is_missing_is_told_at_once(
    written: tuple[str, ...], missing: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*written) == 2
    told = capsys.readouterr().err.split("Error: these are missing:\n")[1].splitlines()
    assert [line.split()[0] for line in told] == missing
    assert all(len(line.split()) > 3 for line in told)


def test_a_single_one_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("x", "--device", "h100", *LENGTHS[:-2]) == 2
    assert capsys.readouterr().err.endswith("Error: Missing option '--rate'.\n")


def test_a_type_that_no_engine_takes_is_refused_before_the_model_is_asked_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begins = "'fp9' is no type of KV of vLLM 0.33.0: use auto, "
    assert run("hf://nobody/knows", "--device", "h100", *LENGTHS, "--kv-dtype", "fp9") == 1
    assert capsys.readouterr().err.startswith(f"error: --kv-dtype: {begins}")
    file = tmp_path / "service.yaml"
    file.write_text(
        "apiVersion: kvserving.dev/v1alpha1\nkind: KVServing\nmetadata: {name: a}\n"
        "spec: {model: {uri: 'hf://nobody/knows'}, engine: {kv: {dtype: fp9}}}\n"
    )
    assert run(str(file), "--device", "h100", *LENGTHS) == 1
    assert capsys.readouterr().err.startswith(f"error: spec.engine.kv.dtype: {begins}")


def test_tokens_that_an_engine_logged_replace_those_of_the_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    logged = ("--kv-tokens", "50000")
    assert run("Qwen/Qwen3-8B", "--device", "h100", *LENGTHS, "--tensor", "1", *logged, "-o", "json") == 0
    told = json.loads(capsys.readouterr().out)
    values = {line["name"]: line["value"] for line in told["lines"]}
    assert (values["prefill: tokens that fit"], values["decode: tokens that fit"]) == (50_000, 50_000)
    (entry,) = (entry for entry in told["inputs"] if entry["name"] == "tokens that fit")
    assert (entry["text"], entry["basis"], entry["source"]) == ("50,000", "given", "--kv-tokens")
    assert run("Qwen/Qwen3-8B", "--device", "h100", *LENGTHS, *logged) == 1
    assert "error: --kv-tokens: holds for the tensor parallel size that it was measured" in capsys.readouterr().err


def test_figures_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("Qwen/Qwen3-8B", "--device", "h100", *LENGTHS, "--no-arithmetic") == 0
    told = capsys.readouterr().out
    assert "prefill: replicas" in told
    assert "ceil(" not in told


@pytest.mark.parametrize("form", [(), ("--no-arithmetic",)])
def test_tensor_sizes_stand_before_the_replicas(form: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    lengths = ("--prompt-tokens", "6000", "--output-tokens", "500", "--rate", "5")
    asked = ("meta-llama/Llama-3.3-70B-Instruct", "--device", "h200", *lengths)
    assert run(*asked, "-o", "json") == 0
    sized = json.loads(capsys.readouterr().out)
    assert sized["prefill"]["tensor"] != sized["decode"]["tensor"]
    told = [(line["name"], line["value"]) for line in sized["lines"]]
    assert run(*asked, *form) == 0
    printed = capsys.readouterr().out
    for role in ("prefill", "decode"):
        tensor = f"{role}: tensor parallel size"
        size, replicas = sized[role]["tensor"], sized[role]["replicas"]
        at = told.index((tensor, size))
        assert told[at + 1] == (f"{role}: replicas", replicas)
        assert re.search(rf"^ +{tensor} +{size}\n +{role}: replicas +{replicas}\b", printed, re.MULTILINE)


@pytest.mark.parametrize("form", [(), ("--no-arithmetic",), ("-o", "yaml"), ("-o", "json")])
@pytest.mark.parametrize(
    ("arguments", "name", "option"),
    [
        (("google/gemma-3-27b-it", "--device", "h100"), "KV of a token", "--fact kvBytesPerToken=…"),
        (("Qwen/Qwen3-8B", "--device", "memory=80,bandwidth=3,bf16=900"), "device: link, both ways", "--device link=…"),
    ],
)
def test_each_form_says_what_is_not_known_or_a_bound_alone(
    form: tuple[str, ...], arguments: tuple[str, ...], name: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments, *LENGTHS, *form) == 0
    told = capsys.readouterr().err.splitlines()
    assert (
        len([line for line in told if line.startswith(f"notice: {name}: ") and f"({option} replaces it)" in line]) == 1
    )


def test_what_is_known_has_no_notice_and_figures_alone_say_what_is_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("Qwen/Qwen3-8B", "--device", "h100", *LENGTHS)
    assert run(*asked, "-o", "json") == 0
    told = capsys.readouterr()
    assert told.err == ""
    inputs = json.loads(told.out)["inputs"]
    assumed = [entry["name"] for entry in inputs if entry["basis"] == "assumed"]
    assert run(*asked, "--no-arithmetic") == 0
    [notice] = capsys.readouterr().err.splitlines()
    assert notice.startswith(f"notice: {len(assumed)} of {len(inputs)} inputs are assumed ({'; '.join(assumed)}): ")


def test_a_folder_with_a_configuration_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.sizing.test_models import QWEN3_8B

    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    assert run(str(tmp_path), "--device", "h100", *LENGTHS, "--fact", "weights=16GB", "-o", "json") == 0
    inputs = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)["inputs"]}
    assert inputs["parameters"]["text"] == "8.19 billion"
    assert inputs["parameters"]["source"] == "config.json and weight files here"
    assert (inputs["weights"]["basis"], inputs["weights"]["text"]) == ("given", "16 GB")


def test_of_a_folder_without_weight_files_none_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.sizing.test_models import QWEN3_8B

    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    assert run(str(tmp_path), "--device", "h100", *LENGTHS, "-o", "json") == 0
    said = capsys.readouterr().out
    assert "weight files here" not in said
    inputs = {entry["name"]: entry for entry in json.loads(said)["inputs"]}
    assert inputs["parameters"]["source"] == "config.json here"
    assert run(str(tmp_path / "config.json"), "--device", "h100", *LENGTHS) == 1
    assert (
        f"MODEL: is the configuration of a model, not an object: name the folder {tmp_path}" in capsys.readouterr().err
    )


def test_the_facts_that_the_page_states_are_those_that_an_unknown_model_needs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    [block] = [block for block in blocks(PAGE.read_text()) if "some/model" in block.text]
    [[_, *words]] = calls(block.text)
    stated = [word for word in words if "=" in word]
    assert cli.run(words) == 0
    assert cli.run([word for word in words if word not in ("--fact", *stated)]) == 1
    asked = re.findall(r"--fact (\w+)=…", capsys.readouterr().err.partition("error: ")[2])
    assert sorted(asked) == sorted(fact.partition("=")[0] for fact in stated)
    for fact in stated:
        at = words.index(fact)
        assert cli.run([*words[: at - 1], *words[at + 1 :]]) == 1
        assert f"state them: --fact {fact.partition('=')[0]}=…\n" in capsys.readouterr().err


def test_an_unknown_model_is_sized_by_what_is_stated(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("parameters=7B", "weights=14GB", "hidden=4096", "heads=32")
    facts = (*sizes, "kind=attention", "layers=32", "kvHeads=8", "headDim=128")
    stated = [word for fact in facts for word in ("--fact", fact)]
    assert run("some/model", "--device", "l40s", *LENGTHS, *stated, "-o", "yaml") == 0
    made = yaml.safe_load(capsys.readouterr().out)
    assert made["spec"]["model"]["facts"] == {"kind": "attention", "layers": 32, "kvHeads": 8, "headDim": 128}


@pytest.mark.parametrize(
    ("written", "size"),
    [("16GB", 16e9), ("16gb", 16e9), ("16Gi", 2.0**34), ("16GiB", 2.0**34), ("1.6e10", 16e9), ("16000 MB", 16e9)],
)
def test_sizes_are_written_as_elsewhere(written: str, size: float, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--device", "h100", *LENGTHS, "--fact", f"weights={written}", "--no-arithmetic", "-o", "json")
    assert run("Qwen/Qwen3-8B", *arguments) == 0
    values = {line["name"]: line["value"] for line in json.loads(capsys.readouterr().out)["lines"]}
    assert values["prefill: memory for KV"] == pytest.approx(0.92 * 80e9 - size - 2e9)


def test_numbers_are_taken_as_they_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(prompt: str, fit: str, *more: str) -> str:
        lengths = ("--prompt-tokens", prompt, "--output-tokens", "300", "--rate", "2.5")
        measured = ("--tensor", "1", "--kv-tokens", fit, *more)
        assert run("Qwen/Qwen3-8B", "--device", "h100", *lengths, *measured) == 0
        return capsys.readouterr().out

    plain = ("--prefill-tokens-per-second", "25000", "--itl", "1000ms", "--fact", "kvBytesPerToken=147456")
    grouped = ("--prefill-tokens-per-second", "25,000", "--itl", "1,000ms", "--fact", "kvBytesPerToken=147,456")
    assert printed("4,000", "374,000", *grouped) == printed("4000", "374000", *plain)


@pytest.mark.parametrize(
    ("option", "written", "said"),
    [
        ("--prompt-tokens", "4,00", "'4,00' is no whole number: write it as 4000 or 4,000"),
        ("--prompt-tokens", "4.000", "'4.000' is no whole number"),
        ("--kv-tokens", "4000,000", "'4000,000' is no whole number"),
        ("--rate", "2,5", "'2,5' is no number: write it as 0.5, 1200 or 1,200"),
        ("--decode-tokens-per-second", "2,40", "'2,40' is no amount"),
        ("--itl", "3,0ms", "'3,0ms' is no time"),
    ],
)
def test_commas_elsewhere_are_refused(option: str, written: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("Qwen/Qwen3-8B", "--device", "h100", *LENGTHS, option, written) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("some/model",), 1, "error: MODEL: hf://some/model: its configuration is not on this machine"),
        (("nowhere",), 1, "error: MODEL: 'nowhere' is no address, no folder here and no owner/name"),
        (("Qwen/Qwen3-8B", "--device", "h1000"), 1, "error: --device: 'h1000' is in no table; there are: a100-40g"),
        (("Qwen/Qwen3-8B", "--device", "cpu"), 1, "error: --device: cpu: speeds are known of GPUs only: name the GPU"),
        (("Qwen/Qwen3-8B", "--rate", "0"), 1, "error: --rate: 0 requests a second need no engines"),
        (("Qwen/Qwen3-8B", "--itl", "30"), 2, "'30' is no time: write a number with its unit, such as 30ms"),
        (("Qwen/Qwen3-8B", "--transfer-bytes-per-second", "9XB"), 2, "'9XB' is no amount: write it as 16.4GB"),
        (("Qwen/Qwen3-8B", "--fact", "size=8B"), 1, "error: --fact: 'size' is no fact of a model: use kind, layers"),
        (("Qwen/Qwen3-8B", "--fact", "layers=3.5"), 1, "error: --fact: layers: '3.5' must be a whole number above 0"),
        (("Qwen/Qwen3-8B", "--fact", "weights=heavy"), 1, "error: --fact: weights: 'heavy' is no amount"),
        (("Qwen/Qwen3-8B", "--fact", "kind=odd"), 1, "error: --fact: kind: "),
        (("Qwen/Qwen3-8B", "--name", "Bad_Name"), 1, "error: metadata.name"),
        (("Qwen/Qwen3-8B", "--max-model-len", "4100"), 1, "4,000 + 300 output tokens are 4,300"),
    ],
)
def test_errors_say_what_is_wrong_and_the_way_out(
    arguments: tuple[str, ...], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--device", "h100", *LENGTHS, *arguments) == status
    assert said in capsys.readouterr().err


def test_an_object_for_cpus_is_refused_before_its_device_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "object.yaml"
    model = {"uri": "hf://Qwen/Qwen3-8B"}
    head = {"apiVersion": "kvserving.dev/v1alpha1", "kind": "KVServing", "metadata": {"name": "qwen"}}
    file.write_text(json.dumps({**head, "spec": {"model": model, "engine": {"device": "cpu"}}}))
    assert run(str(file), "--device", "cpu", *LENGTHS) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: spec.engine.device: cpu: speeds are known of GPUs only: remove the field")
    assert second.startswith("error: --device: cpu: speeds are known of GPUs only: name the GPU to size for: a100-40g")
