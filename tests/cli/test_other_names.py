"""A command that others call otherwise is told by its name here."""

from __future__ import annotations

import pytest

from kvserving_operator import cli
from kvserving_operator.cli import SUMMARIES
from kvserving_operator.cli.plugin import PROGRAM, plugin


@pytest.mark.parametrize(
    ("written", "told"),
    [
        *((name, "`kvserving up FILE` runs a file on this machine") for name in ("apply", "create", "start", "run")),
        *((name, "`kvserving down NAME` stops what `up` started") for name in ("stop", "delete", "rm")),
        *((name, "`kvserving status` shows what runs") for name in ("ps", "list", "get")),
    ],
)
def test_a_command_of_another_program_is_told_with_ours(
    written: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([written, "x"]) == 2
    assert f"there is no command {written!r} here: {told}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "told"), [("apply", "kubectl apply"), ("delete", "kubectl delete kvs"), ("ps", "status")]
)
def test_the_plugin_tells_what_kubectl_does(written: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([written], plugin, PROGRAM) == 2
    said = capsys.readouterr().err
    assert f"there is no command {written!r} here: " in said
    assert told in said


def test_no_command_of_ours_is_said_to_be_elsewhere() -> None:
    assert set(SUMMARIES).isdisjoint(cli._ELSEWHERE)
