"""What a release is made from: a commit that is clean, tagged with its version, and told in the changelog."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from scripts.release import versions

CHANGELOG = "CHANGELOG.md"
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_RELEASED = re.compile(r"(?P<version>\d+\.\d+\.\d+) - (?P<date>\d{4}-\d{2}-\d{2})")


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


def released(root: Path) -> Source:
    """Return the checkout if it may be released. Raises ``Refused`` with everything that keeps it from that."""
    source = committed(root)
    told = [*_unclean(root), *_untold(root, source.version), *_untagged(source)]
    if told:
        raise Refused("\n".join(told))
    return source


def export(source: Source, folder: Path) -> None:
    """Copy what git does not ignore, with modes that do not depend on who checked it out."""
    listed = git(source.root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in sorted(set(listed.split("\0")) - {""}):
        origin, copy = source.root / name, folder / name
        if not origin.is_symlink() and not origin.is_file():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(origin, copy, follow_symlinks=False)
        if not copy.is_symlink():
            copy.chmod(0o755 if origin.stat().st_mode & 0o100 else 0o644)
    for made in (folder, *folder.rglob("*")):
        if made.is_dir() and not made.is_symlink():
            made.chmod(0o755)


def git(root: Path, *arguments: str) -> str:
    """Run git and return what it prints. Raises ``Refused`` with what it says."""
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"git {' '.join(arguments)} in {root} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _unclean(root: Path) -> list[str]:
    changed = git(root, "status", "--porcelain").splitlines()
    if not changed:
        return []
    names = ", ".join(line[3:] for line in changed[:5])
    more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
    return [f"the tree differs from its commit ({names}{more}): commit or remove that; `git status` lists it"]


def _untold(root: Path, version: str) -> list[str]:
    text = (root / CHANGELOG).read_text(encoding="utf-8")
    _, *rest = _SECTION.split(text)
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
    here = [tag for tag in git(source.root, "tag", "--points-at", "HEAD").split() if re.fullmatch(r"v\d.*", tag)]
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
