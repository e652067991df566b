"""What ``doctor`` looks at: a file, this machine, or a cluster, by its arguments."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kvserving_operator import cli
from kvserving_operator.cli.plugin import PROGRAM, plugin
from kvserving_operator.local.state import ServiceDir, State


def kubectl(*arguments: str) -> int:
    return cli.run(arguments, plugin, PROGRAM)


def test_the_plugin_looks_at_this_machine_where_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("KVSERVING_ENGINE_PYTHON", "/no/such/python")
    assert kubectl("doctor") == 3
    assert "KUBECONFIG: " in capsys.readouterr().err
    assert kubectl("doctor", "--machine", "-o", "json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["machine"]["system"] == "Linux"
    assert "no-engine" in {finding["check"] for finding in told["findings"]}


@pytest.mark.parametrize("option", ["--namespace", "--context", "--kubeconfig"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--machine",), "--machine looks at this machine"), (("qwen.yaml",), "a FILE says by itself where it goes")],
)
def test_options_of_a_cluster_are_refused_where_none_is_asked(
    arguments: tuple[str, ...], said: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(("doctor", *arguments, option, "test")) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--machine", "--cluster"])
def test_an_object_is_no_machine_and_no_cluster(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(("doctor", "qwen", option)) == 2
    assert "--cluster and --machine are for calls without an object" in capsys.readouterr().err


def test_an_option_of_a_cluster_makes_kvserving_look_at_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(("doctor", "--kubeconfig", str(tmp_path / "none"))) == 3
    assert "--kubeconfig: " in capsys.readouterr().err


@pytest.mark.parametrize("site", ["cluster", "local"])
def test_json_of_a_file_names_the_site_that_it_was_looked_at_for(
    site: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "qwen.yaml"
    head = "apiVersion: kvserving.dev/v1alpha1\nkind: KVServing\nmetadata: {name: qwen}\n"
    file.write_text(f"{head}spec: {{model: {{uri: 'hf://Qwen/Qwen3-8B'}}}}\n")
    cli.run(("doctor", str(file), "--site", site, "-o", "json"))
    assert json.loads(capsys.readouterr().out)["object"]["site"] == site


def test_a_context_that_is_not_there_is_answered_with_those_that_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text("{clusters: [], users: [], contexts: [{name: prod, context: {cluster: east}}]}")
    assert cli.run(("doctor", "--kubeconfig", str(file), "--context", "stage")) == 3
    assert "there is no context stage: name one of prod with --context" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--site", "local"), "--site is for calls with an object"),
        (("--only", "settings"), "--only settings is for calls with an object"),
        (("--cluster", "--only", "settings"), "--only settings is for calls with an object"),
        (("--machine", "--site", "cluster"), "--site is for calls with an object"),
        (("qwen", "--site", "local"), "a NAME runs where it is"),
        (("qwen.yaml", "--engine-python", "/p"), "--engine-python and --router-python are for what this machine has"),
        (("qwen", "--router-python", "/p"), "leave them out with an object, or leave out qwen"),
        (("--cluster", "--engine-python", "/p"), "a cluster is looked at, leave them out or say --machine"),
        (("-n", "prod", "--router-python", "/p"), "a cluster is looked at, leave them out or say --machine"),
    ],
)
def test_an_option_that_would_do_nothing_is_wrong_usage(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(("doctor", *arguments)) == 2
    assert said in capsys.readouterr().err


def test_a_machine_has_findings_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(("doctor", "--machine", "--only", "findings", "-o", "json")) in (0, 1)
    assert json.loads(capsys.readouterr().out)["findings"]


def test_a_service_on_this_machine_has_no_settings_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVSERVING_STATE_DIR", str(tmp_path))
    directory = ServiceDir("qwen")
    directory.create()
    directory.write(State("qwen", "r", "Failed", {}, sys.executable, "tiny", (), {}))
    assert cli.run(("doctor", "qwen", "--only", "settings")) == 2
    assert "qwen runs on this machine: its settings are those of its FILE" in capsys.readouterr().err
    assert cli.run(("doctor", "qwen", "--only", "findings")) in (0, 1)
    assert "on this machine, Failed" in capsys.readouterr().out


def test_a_file_that_is_not_there_is_no_matter_of_an_operator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "none.yaml")
    assert cli.run(("doctor", file, "-o", "json")) == 1
    answer = json.loads(capsys.readouterr().out)
    [told] = answer["findings"]
    assert (answer["object"]["name"], answer["object"]["namespace"]) == (None, None)
    assert "No such file" in told["what"]
    assert told["why"] == "there is no object to look at"
    assert cli.run(("doctor", file)) == 1
    first, blank, *_ = capsys.readouterr().out.splitlines()
    assert (first, blank) == ("no object was read", "")
    assert cli.run(("doctor", file, "--only", "settings")) == 1
    assert "No such file" in capsys.readouterr().err


def test_json_has_no_part_that_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "qwen.yaml"
    head = "apiVersion: kvserving.dev/v1alpha1\nkind: KVServing\nmetadata: {name: qwen}\n"
    file.write_text(f"{head}spec: {{model: {{uri: 'hf://Qwen/Qwen3-8B'}}}}\n")
    parts = {"settings": {"object", "settings"}, "findings": {"object", "summary", "findings"}}
    for only, members in parts.items():
        assert cli.run(("doctor", str(file), "--only", only, "-o", "json")) == 0
        assert set(json.loads(capsys.readouterr().out)) == members
    assert cli.run(("doctor", str(file), "-o", "json")) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"object", "settings", "summary", "findings"}
