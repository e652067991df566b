"""The change that CONTRIBUTING.md walks through, for tests that make it in a copy of the sources."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("connector/src", "operator/src", "tests/connector/store")
FILES = ("pyproject.toml", "tests/connector/conftest.py")


def section() -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return text.partition("## One change from end to end")[2].partition("\n## ")[0]


def copy_to(folder: Path) -> Path:
    """Copy what the change touches and its tests, as they are without the change: a reader may have made it."""
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    if (folder / _path()).exists():
        (folder / _path()).unlink()
        _apply(folder, "--reverse")
    return folder


def make(copy: Path) -> None:
    """Make the change in a copy: the new file, then the two lines."""
    (store,) = _blocks("python")
    (copy / _path()).write_text(store)
    _apply(copy)


def _path() -> str:
    (path,) = re.findall(r"\*\*1\.\*\* The store, `([^`]+)`", section())
    return str(path)


def _apply(copy: Path, *options: str) -> None:
    diffs = _blocks("diff")
    assert len(diffs) == 2
    for diff in diffs:
        subprocess.run(["git", "apply", "--recount", *options, "-"], cwd=copy, input=diff, text=True, check=True)


def run(copy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python on the copy's sources, whichever are installed."""
    environment = os.environ | {"PYTHONPATH": f"{copy}/connector/src:{copy}/operator/src"}
    return subprocess.run([sys.executable, *words], cwd=copy, env=environment, capture_output=True, text=True)


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", section(), re.MULTILINE | re.DOTALL)
