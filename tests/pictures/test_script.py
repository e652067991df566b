"""The script that makes the pictures."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "pictures"


def test_processes_that_are_forked_for_it_import_it_without_making_pictures() -> None:
    found = runpy.run_path(str(SCRIPT), run_name="__mp_main__")
    assert callable(found["main"])
