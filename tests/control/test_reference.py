from __future__ import annotations

from pathlib import Path

import pytest

from kvserving_operator.control import reference
from kvserving_operator.control.conditions import TYPES
from kvserving_operator.control.events import EventKind
from kvserving_operator.control.main import ExitCode
from kvserving_operator.reasons import Reason


def test_everything_that_is_declared_is_documented() -> None:
    text = reference.render()
    for name in (*TYPES, *Reason, *(kind.reason for kind in EventKind)):
        assert f"`{name}`" in text
    for code in ExitCode:
        assert f"| {code.value} |" in text
    assert "`kvserving_operator_reconciles_total`" in text
    assert "`kvserving_condition`" in text
    assert "`networkpolicies.networking.k8s.io`" in text


def test_the_check_fails_for_a_file_that_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reference.main(["--write", str(tmp_path)]) == 0
    assert reference.main(["--check", str(tmp_path)]) == 0
    (tmp_path / reference.FILE_NAME).write_text("")
    assert reference.main(["--check", str(tmp_path)]) == 1
    assert "--write" in capsys.readouterr().err
