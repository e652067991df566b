"""What ``doctor`` looks at: a file, this machine, or a cluster, by its arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvserving_operator import cli
from kvserving_operator.cli.plugin import PROGRAM, plugin


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
