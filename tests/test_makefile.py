"""The Makefile's installations: what they tell a terminal, and what they tell a log."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Prints the recipes and runs none of them.
_DRY = ("make", "--dry-run", "--always-make", "install", "install-engine")


def recipes(errors: int) -> list[str]:
    """The installing lines of the recipes, where standard error goes to ``errors``."""
    done = subprocess.run(_DRY, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, check=True, timeout=60)
    return [line for line in done.stdout.splitlines() if "uv pip install" in line and "--require-hashes" in line]


def test_installations_show_their_progress_to_a_terminal_alone() -> None:
    terminal, errors = pty.openpty()
    try:
        shown, logged = recipes(errors), recipes(subprocess.DEVNULL)
    finally:
        os.close(errors)
        os.close(terminal)
    assert len(shown) == len(logged) == 2
    assert not any("--quiet" in line for line in shown)
    assert all("--quiet" in line for line in logged)
