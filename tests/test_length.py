"""No file of code is longer than a person reads in one go."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("operator/src", "connector/src", "tests", "e2e", "benchmarks", "scripts", "examples")
MOST = 400


def too_long(root: Path) -> list[str]:
    """Say which files of Python below ``root`` have more than ``MOST`` lines, each with the way out."""
    files = (path for folder in FOLDERS for path in sorted((root / folder).rglob("*")) if _is_python(path))
    lengths = ((path, len(path.read_text(encoding="utf-8").splitlines())) for path in files)
    return [
        f"{path.relative_to(root)} has {length} lines, and {MOST} are the most: move one concern to a file of its own"
        for path, length in lengths
        if length > MOST
    ]


def _is_python(path: Path) -> bool:
    if not path.is_file() or path.suffix not in (".py", ""):
        return False
    with path.open("rb") as file:
        return path.suffix == ".py" or b"python" in file.readline()


def test_no_file_of_code_is_longer_than_one_reads() -> None:
    assert too_long(ROOT) == []


def test_a_file_that_is_too_long_is_told_also_where_its_name_does_not_say_python(tmp_path: Path) -> None:
    for name, text in {
        "tests/a/long.py": "pass\n" * (MOST + 1),
        "tests/enough.py": "pass\n" * MOST,
        "scripts/long": "#!/usr/bin/env python3\n" + "pass\n" * MOST,
        "scripts/shell": "#!/bin/sh\n" + "true\n" * MOST,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [told.partition(":")[0] for told in too_long(tmp_path)] == [
        f"{name} has {MOST + 1} lines, and {MOST} are the most" for name in ("tests/a/long.py", "scripts/long")
    ]
