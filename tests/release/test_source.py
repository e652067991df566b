"""What may be released: a clean commit with its tag and its section of the changelog; the rest is refused by name."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from scripts.release import source, versions
from scripts.release.source import Refused
from tests.release.copies import DAY, ROOT, commit, git, small, told

VERSION = versions.current(ROOT)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return small(tmp_path)


def released(root: Path) -> source.Source:
    with tempfile.TemporaryDirectory() as folder:
        return source.released(root, Path(folder, "tree"))


def refusal(root: Path) -> str:
    with pytest.raises(Refused) as refused:
        released(root)
    return str(refused.value)


def test_a_clean_tagged_commit_with_its_changelog_is_taken(root: Path) -> None:
    found = released(root)
    assert (found.version, found.root) == (VERSION, root)
    assert f"{found.commit} {found.epoch}" == source.git(root, "log", "-1", "--format=%H %ct").strip()


def test_a_changed_or_unknown_file_is_named_and_an_ignored_one_is_not(root: Path) -> None:
    (root / "docs/images.md").open("a").write("more")
    (root / "new").touch()
    told = refusal(root)
    assert "the tree differs from its commit (docs/images.md, new): commit or remove that" in told
    assert "tag" not in told
    git(root, "checkout", "--quiet", "docs/images.md")
    (root / ".gitignore").write_text("new\n.gitignore\n")
    assert released(root).version == VERSION


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ("", "the newest section is to be `## {0} - YYYY-MM-DD`, and is none"),
        ("## Unreleased\n\n- A thing.\n", "there is text under `## Unreleased`: move it below `## {0} - YYYY-MM-DD`"),
        (f"## 7.0.0 - {DAY}\n\n- A thing.\n", f"and is `## 7.0.0 - {DAY}`"),
        ("## {0}\n\n- A thing.\n", "and is `## {0}`: write it"),
        ("## {0} - 2026-13-01\n\n- A thing.\n", "`## {0} - 2026-13-01`: month must be in 1..12"),
        (f"## {{0}} - {DAY}\n\n## 0.0.1 - {DAY}\n\n- A thing.\n", "nothing is below `## {0} - "),
    ],
    ids=["no section", "unreleased", "another", "no day", "no such day", "empty"],
)
def test_a_changelog_that_does_not_tell_of_the_version_is_refused(root: Path, sections: str, words: str) -> None:
    told(root, sections.replace("{0}", VERSION))
    git(root, "tag", "--delete", f"v{VERSION}")
    commit(root)
    git(root, "tag", f"v{VERSION}")
    told_by = refusal(root)
    assert words.replace("{0}", VERSION) in told_by
    assert "CHANGELOG.md" in told_by


def test_a_commit_without_a_tag_is_refused(root: Path) -> None:
    git(root, "tag", "--delete", f"v{VERSION}")
    assert f"this commit has no tag: `git tag --annotate v{VERSION}`" in refusal(root)


def test_a_tag_of_another_version_is_refused(root: Path) -> None:
    git(root, "tag", "v9.9.9")
    assert f"has the tag v9.9.9, and its version is {VERSION}: `make version TO=9.9.9`" in refusal(root)
    git(root, "tag", "--delete", "v9.9.9")
    # What says nothing of a version is nobody's business here.
    git(root, "tag", "vendor-of-things")
    assert released(root).version == VERSION


def test_a_version_that_was_released_from_another_commit_is_refused(root: Path) -> None:
    (root / "new").touch()
    commit(root)
    assert f"the tag v{VERSION} is at " in (told := refusal(root))
    assert f"`make version TO={versions.next_minor(VERSION)}` for the next one" in told


def test_places_that_disagree_are_refused_before_all_else(root: Path) -> None:
    file = root / "docs/images.md"
    file.write_text(file.read_text().replace(VERSION, "9.9.9", 1))
    commit(root)
    assert refusal(root).splitlines()[-1].endswith("`make version TO=X.Y.Z`")


def test_what_the_settings_of_a_checkout_hide_is_refused_all_the_same(root: Path) -> None:
    git(root, "config", "status.showUntrackedFiles", "no")
    (root / "docs/new").touch()
    assert "(docs/new): commit or remove that; `git status -uall` lists it" in refusal(root)


def test_what_git_is_told_to_take_for_unchanged_is_not_looked_at(root: Path) -> None:
    for name, option in ((versions.TRUTH, "--assume-unchanged"), ("CHANGELOG.md", "--skip-worktree")):
        git(root, "update-index", option, name)
        (root / name).write_text("__version__ = '9.9.9'\n")
    assert released(root).version == VERSION


def test_a_commit_is_written_as_it_is_whatever_git_would_make_of_it(root: Path, tmp_path: Path) -> None:
    (root / "run").write_bytes(b"#!/bin/sh\n\xff\0")
    (root / "run").chmod(0o700)
    (root / "run.link").symlink_to("run")
    (root / "left.txt").write_text("$Format:%H$\n")
    (root / "\u00e4 b").touch()
    (root / ".gitattributes").write_text("*.md export-ignore\nleft.txt export-subst eol=crlf\n")
    commit(root)
    for name in ("CHANGELOG.md", "run"):
        (root / name).unlink()
    (root / "new").touch()
    folder = tmp_path / "written"
    old = os.umask(0o077)
    try:
        source.write(root, "HEAD", folder)
    finally:
        os.umask(old)
    made = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()}
    added = {"CHANGELOG.md", ".gitattributes", "run", "run.link", "left.txt", "\u00e4 b"}
    assert made.keys() == {*versions.PLACES, *added}
    assert made["run"].read_bytes() == b"#!/bin/sh\n\xff\0"
    assert made["left.txt"].read_bytes() == b"$Format:%H$\n"
    assert made["run.link"].readlink() == Path("run")
    modes = {name: path.stat().st_mode & 0o777 for name, path in made.items() if not path.is_symlink()}
    assert {name for name, mode in modes.items() if mode != 0o644} == {"run"}
    assert {modes["run"], folder.stat().st_mode & 0o777, (folder / "docs").stat().st_mode & 0o777} == {0o755}


def test_a_commit_that_holds_another_repository_is_refused(root: Path) -> None:
    head = source.git(root, "rev-parse", "HEAD").strip()
    git(root, "update-index", "--add", "--cacheinfo", f"160000,{head},vendored")
    git(root, "commit", "--quiet", "--message=two")
    assert "vendored: a submodule, of which the commit has no files" in refusal(root)


def test_a_commit_without_a_changelog_or_a_place_of_the_version_is_refused(root: Path) -> None:
    (root / "CHANGELOG.md").unlink()
    commit(root)
    assert "CHANGELOG.md: the commit has none: write one" in refusal(root)
    (root / "docs/images.md").unlink()
    commit(root)
    assert "docs/images.md: is not there, and the version is expected in it" in refusal(root)
    (root / versions.TRUTH).unlink()
    commit(root)
    with pytest.raises(versions.BadVersion, match="0 times, and once is wanted"):
        released(root)


def test_where_git_cannot_be_run_that_is_said(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert "git cannot be run (No such file or directory)" in (told := refusal(root))
    assert "`apt-get install git`" in told


def test_another_repository_that_a_hook_names_is_not_taken(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = source.git(root, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    assert source.git(root, "rev-parse", "HEAD") == head


def test_an_export_has_what_git_does_not_ignore_with_modes_that_no_mask_changes(root: Path, tmp_path: Path) -> None:
    (root / ".gitignore").write_text("/build/\n")
    (root / "build").mkdir()
    (root / "build/left").touch()
    (root / "run").touch()
    (root / "run").chmod(0o700)
    (root / "run.link").symlink_to("run")
    (root / "docs/images.md").unlink()
    folder = tmp_path / "exported"
    old = os.umask(0o077)
    try:
        source.export(source.Source(root, VERSION, "", 0), folder)
    finally:
        os.umask(old)
    made = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()}
    assert made.keys() == {*versions.PLACES, "CHANGELOG.md", ".gitignore", "run", "run.link"} - {"docs/images.md"}
    assert made["run.link"].readlink() == Path("run")
    modes = {name: path.stat().st_mode & 0o777 for name, path in made.items()}
    assert {name for name, mode in modes.items() if mode != 0o644} == {"run", "run.link"}
    assert {modes["run"], folder.stat().st_mode & 0o777, (folder / "docs").stat().st_mode & 0o777} == {0o755}
