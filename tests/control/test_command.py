from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvserving_operator.cli.operator import command
from kvserving_operator.control import main
from kvserving_operator.control.config import Config, Election
from kvserving_operator.control.exit_codes import ExitCode


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """What the command would run with, in place of running it."""
    found: list[Config] = []

    def run(config: Config) -> int:
        found.append(config)
        return 0

    monkeypatch.setattr(main, "run", run)
    return found


def invoke(*arguments: str, **environment: str) -> Result:
    names: dict[str, Any] = {"KUBECONFIG": None, "POD_NAMESPACE": None, "POD_NAME": None, **environment}
    return CliRunner().invoke(command, ["run", *arguments], env=names)


def test_defaults_serve_every_namespace_with_a_lease(configured: list[Config]) -> None:
    assert invoke().exit_code == 0
    assert configured[0].namespaces == ()
    assert configured[0].election.enabled
    assert (configured[0].listen_host, configured[0].listen_port) == ("0.0.0.0", 8080)


def test_options_come_from_the_environment_as_well(configured: list[Config]) -> None:
    result = invoke(
        KVSERVING_OPERATOR_WORKERS="3",
        KVSERVING_OPERATOR_NAMESPACE="a b",
        POD_NAMESPACE="mine",
        POD_NAME="operator-0",
    )
    assert result.exit_code == 0, result.output
    assert (configured[0].workers, configured[0].namespaces) == (3, ("a", "b"))
    assert (configured[0].namespace, configured[0].identity) == ("mine", "operator-0")


def test_the_operator_s_own_variables_win_over_those_that_others_read_too(
    configured: list[Config], tmp_path: Path
) -> None:
    for name in ("mine", "others"):
        (tmp_path / name).touch()
    others = {"POD_NAMESPACE": "others", "KUBECONFIG": str(tmp_path / "others"), "POD_NAME": "others-0"}
    own = {
        "KVSERVING_OPERATOR_OWN_NAMESPACE": "mine",
        "KVSERVING_OPERATOR_KUBECONFIG": str(tmp_path / "mine"),
        "KVSERVING_OPERATOR_IDENTITY": "mine-0",
    }
    for environment in (others, others | own):
        result = invoke(**environment)
        assert result.exit_code == 0, result.output
    assert [(each.namespace, each.kubeconfig, each.identity) for each in configured] == [
        (name, tmp_path / name, f"{name}-0") for name in ("others", "mine")
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--listen=8080",), "not HOST:PORT"),
        (("--lease-duration=5", "--renew-deadline=10"), "each must exceed the next"),
        (("--workers=0",), "--workers"),
        (("--namespace=",), "'' is no name of a namespace"),
        (("--namespace=*",), "leave the option out to serve all"),
        (("--own-namespace=A_b",), "'A_b' is no name of a namespace"),
        (("--kubeconfig=/nowhere/at/all",), "does not exist"),
        (("--log-format=xml",), "'xml' is not one of 'json', 'text'"),
    ],
)
def test_wrong_usage_is_told_with_status_2(configured: list[Config], arguments: tuple[str, ...], told: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert told in result.output
    assert configured == []


def test_log_lines_are_json_unless_text_is_asked_for(configured: list[Config]) -> None:
    for arguments in ((), ("--log-format=text",), ("--log-format=json",)):
        assert invoke(*arguments).exit_code == 0
    assert [config.log_format for config in configured] == ["json", "text", "json"]


def test_help_names_every_exit_status() -> None:
    output = invoke("--help").output
    for code in ExitCode:
        assert f"\n    {code.value}  " in output


def test_election_times_must_leave_room_for_each_other() -> None:
    with pytest.raises(ValueError, match="retry period"):
        Election(duration=15, renew_deadline=2, retry_period=2)
