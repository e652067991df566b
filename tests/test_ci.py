"""What .ci/run does to the machine of whoever runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def program(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)


def run(folder: Path, make: int, down: int) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run it with a make and a kvserving that only tell their words and their folder of all services."""
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    told = folder / "told"
    tell = f'echo "$(basename "$0") $*: $KVSERVING_STATE_DIR" >> {told}'
    program(folder / "bin" / "make", tell, 'test -d "$KVSERVING_STATE_DIR" || exit 9', f"exit {make}")
    program(folder / ".venv" / "bin" / "kvserving", tell, f"exit {down}")
    temporary = folder / "tmp"
    temporary.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "TMPDIR": str(temporary),
        "KVSERVING_STATE_DIR": str(folder / "mine"),
    }
    done = subprocess.run(
        [folder / ".ci" / "run"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    return done, told.read_text().splitlines()


@pytest.mark.parametrize("status", [0, 2])
def test_a_run_has_services_of_its_own_and_leaves_no_folder(tmp_path: Path, status: int) -> None:
    done, told = run(tmp_path, make=status, down=0)
    assert done.returncode == status, done.stderr
    (folder,) = {line.partition(": ")[2] for line in told}
    assert Path(folder).parent == tmp_path / "tmp"
    assert told[-1] == f"kvserving down --all: {folder}"
    assert not Path(folder).exists()
    assert (f"make demo: {folder}" in told) == (status == 0)


def test_what_could_not_be_stopped_is_told_with_its_folder(tmp_path: Path) -> None:
    done, told = run(tmp_path, make=2, down=1)
    assert done.returncode == 2
    folder = told[-1].partition(": ")[2]
    assert f"KVSERVING_STATE_DIR={folder}" in done.stderr
    assert Path(folder).is_dir()
