"""Which Python runs engines and routers, and what is said of one that is not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvserving_operator.local import launchers
from kvserving_operator.local.errors import EnvironmentFault


def test_an_interpreter_is_chosen_by_option_then_variable_then_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "bin" / "python"
    link.parent.mkdir()
    link.symlink_to(sys.executable)
    assert launchers.choose(None, "KVSERVING_ENGINE_PYTHON") == sys.executable
    monkeypatch.setenv("KVSERVING_ENGINE_PYTHON", "/no/such")
    with pytest.raises(EnvironmentFault, match="KVSERVING_ENGINE_PYTHON: /no/such is not a program"):
        launchers.choose(None, "KVSERVING_ENGINE_PYTHON")
    assert launchers.choose(str(link), "KVSERVING_ENGINE_PYTHON") == str(link)
    assert launchers.choose(str(tmp_path), "KVSERVING_ENGINE_PYTHON") == str(link)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvironmentFault) as told:
        launchers.choose(".venv-engine/bin/python", "KVSERVING_ENGINE_PYTHON")
    assert str(told.value) == (
        "--engine-python: .venv-engine/bin/python is not a program: it is relative to the present folder, and "
        f"{tmp_path}/.venv-engine/bin/python is none. Name the bin/python of an environment by its whole path"
    )
    with pytest.raises(EnvironmentFault, match="python-none is not a program: no folder of PATH has it"):
        launchers.choose("python-none", "KVSERVING_ENGINE_PYTHON")
    with pytest.raises(EnvironmentFault, match="--router-python: /no/such"):
        launchers.choose("/no/such", "KVSERVING_ROUTER_PYTHON")
