"""A module of ours in a process of its own finds what we find, and hands none of it on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from kvserving_operator.local import module

_TELLS = """
import json, os, sys
import kvserving_operator
print(json.dumps([sys.argv[1:], os.environ.get("KVSERVING_MODULE_PATH"), os.environ.get("PYTHONPATH"), __name__]))
"""


def test_a_module_is_found_by_our_path_which_its_own_children_do_not_inherit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages/tells_what_it_got.py").write_text(_TELLS)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    environment = module.environment()
    assert str(tmp_path / "packages") in environment["KVSERVING_MODULE_PATH"]
    command = module.command("tells_what_it_got", "a", "--b=c")
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [["a", "--b=c"], None, None, "__main__"]
