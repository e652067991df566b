"""The change that CONTRIBUTING.md walks through, for tests that make it in a copy of the sources."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
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
        undo(folder)
    return folder


def make(copy: Path) -> None:
    """Make the change in a copy: the new file, then the two lines."""
    (store,) = _blocks("python")
    (copy / _path()).write_text(store)
    for path, additions in _additions(copy):
        text = path.read_text()
        for above, line in additions:
            assert text.count(above) == 1, f"{path}: the line above the one to add is not there once: {above!r}"
            text = text.replace(above, above + line)
        path.write_text(text)


def undo(copy: Path) -> None:
    """Take the change out of a copy, wherever its lines lie now."""
    (copy / _path()).unlink()
    for path, additions in _additions(copy):
        text = path.read_text()
        for _, line in additions:
            assert text.count(line) == 1, f"{path}: the line to take out is not there once: {line!r}"
            text = text.replace(line, "")
        path.write_text(text)


def _path() -> str:
    (path,) = re.findall(r"\*\*1\.\*\* The store, `([^`]+)`", section())
    return str(path)


def _additions(copy: Path) -> list[tuple[Path, list[tuple[str, str]]]]:
    """Each file of a diff with its lines to add, each after the line above it.

    No more of the context counts: a reader may have another store where the diff adds one.
    """
    diffs = _blocks("diff")
    assert len(diffs) == 2
    found = []
    for diff in diffs:
        (name,) = re.findall(r"^\+\+\+ b/(.+)$", diff, re.MULTILINE)
        lines = [line for line in diff.partition("@@")[2].splitlines(keepends=True)[1:] if line[0] in " +"]
        pairs = [(above[1:], line[1:]) for above, line in pairwise(lines) if line[0] == "+"]
        assert pairs
        found.append((copy / name, pairs))
    return found


def run(copy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python on the copy's sources, whichever are installed."""
    environment = os.environ | {"PYTHONPATH": f"{copy}/connector/src:{copy}/operator/src"}
    return subprocess.run([sys.executable, *words], cwd=copy, env=environment, capture_output=True, text=True)


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", section(), re.MULTILINE | re.DOTALL)
