"""Two builds that must give the same bytes: other folders, other times, zone, locale, mask and hash seed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.release import archives, source
from scripts.release.parts import BuildFailed


@dataclass(frozen=True)
class Surroundings:
    """What differs between two builds and must not matter."""

    folder: str
    files_from: int | None
    """When the files of the tree were changed last, in seconds since 1970; ``None`` is now."""
    umask: int
    environ: Mapping[str, str]


PAIR = (
    Surroundings("a", None, 0o022, {"TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "1"}),
    Surroundings("b/deeper", 10**9, 0o077, {"TZ": "Pacific/Auckland", "LC_ALL": "C", "PYTHONHASHSEED": "2"}),
)


def differences(root: Path, options: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Build ``root`` twice with ``options``; return the names of what was made, and a line for each that differs.

    Who goes on working in ``root`` meanwhile disturbs nothing. Raises ``BuildFailed`` and ``source.Refused``.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        found = source.committed(root)
        source.export(found, tree)
        same = (f"--commit={found.commit}", *options)
        outputs = [_built(root, tree, Path(folder), surroundings, same) for surroundings in PAIR]
        return sorted(path.name for path in outputs[0].iterdir()), archives.differing(*outputs)


def _built(root: Path, exported: Path, below: Path, surroundings: Surroundings, options: Sequence[str]) -> Path:
    folder = below / surroundings.folder
    temporary, output, tree = folder / "tmp", folder / "out", folder / "tree"
    temporary.mkdir(parents=True)
    shutil.copytree(exported, tree, symlinks=True)
    if surroundings.files_from is not None:
        for file in tree.rglob("*"):
            os.utime(file, (surroundings.files_from, surroundings.files_from), follow_symlinks=False)
    # A process of its own: mask, zone and hash seed are settings of a whole process.
    done = subprocess.run(
        [sys.executable, "-m", "scripts.release", "build", "--trial", f"--output={output}", f"--tree={tree}", *options],
        cwd=root,
        env={**os.environ, **surroundings.environ, "TMPDIR": str(temporary)},
        umask=surroundings.umask,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BuildFailed(f"the build in {folder} ended with {done.returncode}:\n{(done.stdout + done.stderr).strip()}")
    [made] = output.iterdir()
    return made
