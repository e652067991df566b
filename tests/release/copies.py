"""A repository of its own to release: what the checkout has, committed, so that a test may change it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from scripts.release import source, versions

ROOT = Path(__file__).parents[2]
DAY = "2026-12-01"
_NOBODY = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b.c",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b.c",
}


def git(root: Path, *arguments: str) -> None:
    """Run git as nobody in particular, without this machine's settings."""
    env = {**os.environ, **_NOBODY, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(["git", "-C", str(root), *arguments], env=env, check=True, capture_output=True, timeout=60)


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=one")


def places(folder: Path) -> Path:
    """Return a folder with the files alone that say the version."""
    for name in versions.PLACES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text((ROOT / name).read_text())
    return folder


def small(folder: Path) -> Path:
    """Return a repository with what a release looks at first; its one commit may be released."""
    places(folder)
    told(folder, f"## Unreleased\n\n## {versions.current(ROOT)} - {DAY}\n\n- A thing.\n")
    git(folder, "init", "--quiet")
    commit(folder)
    git(folder, "tag", f"v{versions.current(ROOT)}")
    return folder


def whole(folder: Path) -> Path:
    """Return a repository with everything of the checkout; it has no commit yet."""
    source.export(source.committed(ROOT), folder)
    git(folder, "init", "--quiet")
    return folder


def told(root: Path, sections: str) -> None:
    """Write a changelog with ``sections``."""
    (root / source.CHANGELOG).write_text(f"# Changelog\n\nWords.\n\n{sections}")


def released_changelog(root: Path) -> None:
    """Give what is unreleased to the version of ``root``, as a release does."""
    file = root / source.CHANGELOG
    title = f"## Unreleased\n\n## {versions.current(root)} - {DAY}\n"
    file.write_text(re.sub(r"^## Unreleased\n", title, file.read_text(), count=1, flags=re.MULTILINE))
