"""``kvserving validate`` and ``render``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .machine import Machine
from .support import ROOT


def test_validate_reports_every_fault_of_every_file(machine: Machine) -> None:
    good = machine.file()
    bad = machine.file(more="  decod: {}\n  transfer: {lease: -1s}", name="bad.yaml")
    done = machine("validate", good, bad)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == f"{good}: valid"
    assert any(line.startswith(f"{bad}: spec.decod: ") for line in lines)
    assert any(line.startswith(f"{bad}: spec.transfer.lease: ") for line in lines)
    answer = json.loads(machine("validate", "-o", "json", good, bad).stdout)
    assert [entry["valid"] for entry in answer] == [True, False]
    assert {fault["path"] for fault in answer[1]["faults"]} >= {"spec.decod", "spec.transfer.lease"}


def test_validate_reads_standard_input_and_names_files_that_cannot_be_read(machine: Machine) -> None:
    done = machine("validate", "-", text=Path(machine.file()).read_text())
    assert (done.returncode, done.stdout) == (0, "standard input: valid\n")
    (machine.folder / "b").mkdir()
    done = machine("validate", "b")
    assert (done.returncode, done.stdout) == (1, "b is a folder: name the files in it, such as b/NAME.yaml\n")
    (machine.folder / "b" / "c.yaml").touch()
    assert machine("validate", "b").stdout == "b is a folder: name the files in it, such as b/c.yaml\n"
    done = machine("validate", "missing.yaml")
    assert (done.returncode, done.stdout) == (1, "missing.yaml: cannot be read: No such file or directory\n")


def test_render_prints_objects_and_nothing_else(machine: Machine) -> None:
    import yaml

    done = machine("render", machine.file())
    assert done.returncode == 0
    objects = list(yaml.safe_load_all(done.stdout))
    assert {"Deployment", "Service", "ConfigMap"} <= {o["kind"] for o in objects}
    assert "notice: Secret svc-keys (signing, router-admin) is not printed" in done.stderr
    assert (
        "the operator creates it. Without the operator create it yourself: kubectl create secret generic svc-keys -n"
        " default --from-literal=signing=$(openssl rand -hex 32) --from-literal=router-admin=$(openssl rand -hex 32)"
    ) in done.stderr
    listed = json.loads(machine("render", machine.file(), "-o", "json").stdout)
    assert listed["items"] == objects
    local = machine("render", machine.file(), "--site", "local")
    assert "$(KVSERVING_DISCOVERY_FILE)" in local.stdout
    assert "`kvserving up` creates it" in local.stderr
    broken = machine("render", machine.file(more="  decod: {}"))
    assert (broken.returncode, broken.stdout) == (1, "")
    assert "spec.decod" in broken.stderr


def test_a_path_that_only_this_machine_can_resolve_is_valid_and_told(machine: Machine) -> None:
    text = Path(machine.file()).read_text().replace(f"file://{machine.model}", "file:model")
    file = machine.folder / "relative.yaml"
    file.write_text(text)
    done = machine("validate", str(file))
    assert done.returncode == 0
    assert done.stdout == f"{file}: valid\n"
    relative = "spec.model.uri: relative to this machine: `kvserving up` takes it, `kubectl apply` does not"
    first, *planned = done.stderr.splitlines()
    assert first == f"notice: {file}: {relative}"
    rendered = machine("render", "--site", "local", str(file)).stderr.partition("notice: Secret")[0]
    assert [line.replace(f"{file}: ", "") for line in planned] == rendered.splitlines()
    [answer] = json.loads(machine("validate", "-o", "json", str(file)).stdout)
    assert answer["valid"]
    assert f"{answer['notices'][0]['path']}: {answer['notices'][0]['message']}" == relative


def test_a_model_folder_that_is_not_on_this_machine_is_told_as_that(machine: Machine) -> None:
    text = Path(machine.file()).read_text()
    missing = machine.folder / "gone"
    refused = (
        "on this machine, so `kvserving up` would refuse it: name the folder of a model, as file:///path/to/model."
    )
    sentence = f"the folder {missing} does not exist {refused}"
    for uri in ("file:gone", f"file://{missing}"):
        file = machine.folder / "gone.yaml"
        file.write_text(text.replace(f"file://{machine.model}", uri))
        done = machine("validate", str(file))
        assert done.stdout == f"{file}: valid\n"
        assert (
            f"notice: {file}: spec.model.uri: {sentence} Until it is there, nothing is known about file" in done.stderr
        )
        assert "spec.model.facts" not in done.stderr
    file.write_text(text.replace("name: tiny", "name: tiny, facts: {kind: attention, kvHeads: 4}").replace(
        f"file://{machine.model}", "file:gone"))  # fmt: skip
    assert f"notice: {file}: spec.model.uri: {sentence}" in machine("validate", str(file)).stderr
    file.write_text(text.replace(f"file://{machine.model}", "pvc://models/gone"))
    assert "on this machine" not in machine("validate", str(file)).stderr
    missing.mkdir()
    file.write_text(text.replace(f"file://{machine.model}", "file:gone"))
    assert f"the folder {missing} has no config.json on this machine" in machine("validate", str(file)).stderr


@pytest.mark.parametrize("python", [None, "/env/bin/python"])
def test_the_model_of_an_example_that_was_not_made_yet_is_told_with_how_to_make_it(
    machine: Machine, python: str | None
) -> None:
    machine.env["HOME"] = str(machine.folder)
    if python is None:
        del machine.env["KVSERVING_ENGINE_PYTHON"]
    else:
        machine.env["KVSERVING_ENGINE_PYTHON"] = python
    folder = machine.folder / ".cache/kvserving/models/tiny-qwen3"
    make = f"{python or '.venv-engine/bin/python'} examples/tiny_model.py qwen3 {folder}"
    done = machine("validate", str(ROOT / "examples/laptop.yaml"))
    assert done.returncode == 0
    assert f"would refuse it: in a checkout `{make}` makes it; or name the folder of a model" in done.stderr


def test_validate_shows_the_notices_of_the_plan_and_stays_valid(machine: Machine) -> None:
    file = machine.folder / "noted.yaml"
    file.write_text(
        "apiVersion: kvserving.dev/v1alpha1\nkind: KVServing\nmetadata: {name: noted}\n"
        "spec:\n  model: {uri: 'hf://nobody/knows'}\n  engine: {image: 'mine.example/engine:v0.31.0'}\n"
    )
    bad = machine.file(more="  decod: {}", name="bad.yaml")
    done = machine("validate", str(file), bad)
    assert done.stdout.splitlines()[0] == f"{file}: valid"
    told = done.stderr.splitlines()
    assert f"notice: {file}: spec.engine.image: vLLM 0.31.0 was not tested on device gpu; tested:" in done.stderr
    assert [line for line in told if line.startswith(f"notice: {file}: spec.model.facts: nothing is known about")]
    assert not [line for line in told if bad in line]
    rendered = machine("render", str(file)).stderr
    assert all(line.replace(f"{file}: ", "") in rendered.splitlines() for line in told)
    done = machine("validate", "-o", "json", str(file), bad)
    (noted, refused) = json.loads(done.stdout)
    assert [(n["reason"], n["path"]) for n in noted["notices"]] == [
        ("EngineUntested", "spec.engine.image"),
        ("ModelFactsUnknown", "spec.model.facts"),
    ]
    assert (noted["valid"], refused["notices"], done.stderr) == (True, [], "")
    assert machine("validate", str(file)).returncode == 0


def test_what_is_left_to_be_found_is_a_notice_that_is_told_once(machine: Machine) -> None:
    bad = [machine.file(more="  transfer: {lease: -1s}", name=f"bad{number}.yaml") for number in range(3)]
    told = "what only a plan finds, such as what this vLLM does not take, is told once the faults are mended"
    assert machine("validate", bad[0]).stderr == f"notice: {bad[0]}: {told}\n"
    assert machine("validate", *bad).stderr == f"notice: 3 files with faults: {told}\n"


def test_a_section_without_a_value_is_a_notice_that_says_what_it_does(machine: Machine) -> None:
    path = machine.file(more="  cache:")
    told = "spec.cache: has no value, which counts as left out: its default holds; give it a value, or remove it."
    for command, name in (("validate", f"{path}: "), ("render", "")):
        done = machine(command, path)
        assert done.returncode == 0
        assert f"notice: {name}{told}" in done.stderr
    text = "apiVersion: kvserving.dev/v1alpha1\nkind: KVServing\nmetadata: {name: svc}\nspec:\n"
    alone = machine("validate", "-", text=f"{text}  model: {{uri: hf://Qwen/Qwen3-8B}}\n  prefill:\n")
    assert alone.returncode == 0
    assert "spec.prefill: has no value, which counts as left out: one engine serves alone and no KV" in alone.stderr
