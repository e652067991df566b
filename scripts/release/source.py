"""What a release is made from: a commit that is clean, tagged with its version, and told in the changelog."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from scripts.release import versions

CHANGELOG = "CHANGELOG.md"
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_RELEASED = re.compile(r"(?P<version>\d+\.\d+\.\d+) - (?P<date>\d{4}-\d{2}-\d{2})")
_ELSEWHERE = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"})
"""With these, as a hook has them, git would look at another repository than the one it is told."""
_LINK, _PROGRAM, _MODULE = "120000", "100755", "160000"


class Refused(Exception):
    """No release can be made; each line of the message names what is wrong and the way out."""


@dataclass(frozen=True)
class Source:
    """A commit, its version, and the seconds since 1970 when it was made."""

    root: Path
    version: str
    commit: str
    epoch: int


def committed(root: Path, commit: str = "HEAD", tree: Path | None = None) -> Source:
    """Return the checkout, whatever state it is in, or ``tree`` as a copy of it. Raises ``Refused``."""
    tree = tree or root
    if told := versions.faults(tree):
        raise Refused("\n".join([*told, "write one version into all of them: `make version TO=X.Y.Z`"]))
    commit, epoch = git(root, "log", "-1", "--format=%H %ct", commit).split()
    return Source(root, versions.current(tree), commit, int(epoch))


def released(root: Path, folder: Path) -> Source:
    """Write the commit of the checkout into ``folder``; return it if it may be released.

    Only what the commit holds is looked at and written. Raises ``Refused`` with everything that keeps it from that.
    """
    unclean = _unclean(root)
    commit = git(root, "rev-parse", "HEAD").strip()
    write(root, commit, folder)
    source = committed(root, commit, folder)
    if told := [*unclean, *_untold(folder, source.version), *_untagged(source)]:
        raise Refused("\n".join(told))
    return source


def write(root: Path, commit: str, folder: Path) -> None:
    """Write the files of a commit into ``folder``, byte for byte: no attribute, filter or setting of git changes them.

    Raises ``Refused`` for a commit with another repository in it.
    """
    entries = [entry.split("\t", 1) for entry in git(root, "ls-tree", "-r", "-z", commit).split("\0") if entry]
    kinds = [(*about.split(), name) for about, name in entries]
    if modules := [name for mode, _, _, name in kinds if mode == _MODULE]:
        raise Refused(f"{', '.join(modules)}: a submodule, of which the commit has no files: commit them as files")
    contents = _blobs(root, [blob for _, _, blob, _ in kinds])
    for (mode, _, _, name), content in zip(kinds, contents, strict=True):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if mode == _LINK:
            file.symlink_to(os.fsdecode(content))
        else:
            file.write_bytes(content)
            file.chmod(0o755 if mode == _PROGRAM else 0o644)
    _settle_folders(folder)


def export(source: Source, folder: Path) -> None:
    """Copy what git does not ignore, committed or not, with modes that do not depend on who checked it out."""
    listed = git(source.root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in sorted(set(listed.split("\0")) - {""}):
        origin, copy = source.root / name, folder / name
        if not origin.is_symlink() and not origin.is_file():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(origin, copy, follow_symlinks=False)
        if not copy.is_symlink():
            copy.chmod(0o755 if origin.stat().st_mode & 0o100 else 0o644)
    _settle_folders(folder)


def git(root: Path, *arguments: str) -> str:
    """Run git and return what it prints. Raises ``Refused`` with what it says, or where it is not installed."""
    return os.fsdecode(_git(root, *arguments))


def _git(root: Path, *arguments: str, given: bytes = b"") -> bytes:
    # An object that is replaced here is another one than that which the commit names.
    env = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE} | {
        "GIT_NO_REPLACE_OBJECTS": "1"
    }
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, env=env, input=given, capture_output=True, check=False)
    except OSError as error:
        raise Refused(
            f"git cannot be run ({error.strerror}), and it knows what a release is made of: `apt-get install git`, or "
            "put it into PATH"
        ) from error
    if done.returncode:
        said = os.fsdecode(done.stderr).strip()
        raise Refused(f"git {' '.join(arguments)} in {root} ended with {done.returncode}: {said}")
    return done.stdout


def _blobs(root: Path, names: list[str]) -> Iterator[bytes]:
    printed = _git(root, "cat-file", "--batch", given="".join(f"{name}\n" for name in names).encode())
    at = 0
    for name in names:
        end = printed.index(b"\n", at)
        found, *about = printed[at:end].decode().split()
        if found != name or len(about) != 2:
            raise Refused(f"git has not all of the commit ({printed[at:end].decode()}): fetch it whole, and try again")
        size = int(about[1])
        yield printed[end + 1 : end + 1 + size]
        at = end + 2 + size


def _settle_folders(folder: Path) -> None:
    for made in (folder, *folder.rglob("*")):
        if made.is_dir() and not made.is_symlink():
            made.chmod(0o755)


def _unclean(root: Path) -> list[str]:
    # Whatever the settings of this checkout hide.
    changed = git(root, "status", "--porcelain", "--untracked-files=all", "--ignore-submodules=none").splitlines()
    if not changed:
        return []
    names = ", ".join(line[3:] for line in changed[:5])
    more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
    return [f"the tree differs from its commit ({names}{more}): commit or remove that; `git status -uall` lists it"]


def _untold(root: Path, version: str) -> list[str]:
    file = root / CHANGELOG
    if not file.is_file():
        return [f"{CHANGELOG}: the commit has none: write one, with the section `## {version} - YYYY-MM-DD`"]
    _, *rest = _SECTION.split(file.read_text(encoding="utf-8"))
    bodies = {title: body.strip() for title, body in zip(rest[::2], rest[1::2], strict=True)}
    told = []
    if bodies.get("Unreleased"):
        told.append(f"{CHANGELOG}: there is text under `## Unreleased`: move it below `## {version} - YYYY-MM-DD`")
    sections = [title for title in bodies if title != "Unreleased"]
    newest = _RELEASED.fullmatch(sections[0]) if sections else None
    if newest is None or newest["version"] != version:
        found = f"`## {sections[0]}`" if sections else "none"
        told.append(f"{CHANGELOG}: the newest section is to be `## {version} - YYYY-MM-DD`, and is {found}: write it")
        return told
    try:
        date.fromisoformat(newest["date"])
    except ValueError as error:
        told.append(f"{CHANGELOG}: `## {sections[0]}`: {error}: give the day of the release")
    if not bodies[sections[0]]:
        told.append(f"{CHANGELOG}: nothing is below `## {sections[0]}`: say what changed")
    return told


def _untagged(source: Source) -> list[str]:
    wanted = f"v{source.version}"
    here = [tag for tag in git(source.root, "tag", "--points-at", source.commit).split() if re.fullmatch(r"v\d.*", tag)]
    if wanted in here and len(here) == 1:
        return []
    if others := [tag for tag in here if tag != wanted]:
        return [
            f"this commit has the tag {', '.join(others)}, and its version is {source.version}: "
            f"`make version TO={others[0][1:]}`, commit and tag that, or remove the tag: `git tag --delete {others[0]}`"
        ]
    if git(source.root, "tag", "--list", wanted).strip():
        there = git(source.root, "rev-parse", "--short", f"{wanted}^{{commit}}").strip()
        return [
            f"the tag {wanted} is at {there}, and this is {source.commit[:12]}: `git checkout {wanted}` to build that "
            f"release again, or `make version TO={versions.next_minor(source.version)}` for the next one"
        ]
    return [f"this commit has no tag: `git tag --annotate {wanted}`; `make release-check` needs none"]
