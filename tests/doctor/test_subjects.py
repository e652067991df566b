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
