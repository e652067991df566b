"""Archives: the same bytes for the same content, and a difference is named."""

from __future__ import annotations

import os
import tarfile
import time
import zipfile
from pathlib import Path

from scripts.release import archives


def tree(folder: Path, names: list[str], at: float, mode: int) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
        (folder / name).chmod(mode)
        os.utime(folder / name, (at, at))
    return folder


def test_a_packed_folder_depends_on_its_content_alone(tmp_path: Path) -> None:
    names = ["b.yaml", "a/c.yaml", "a/b.yaml", ".hidden", ".also/this"]
    one, other = tmp_path / "one.tgz", tmp_path / "other.tgz"
    archives.write_tgz(one, tree(tmp_path / "1", names, 1e9, 0o600), "chart", 1_700_000_000)
    archives.write_tgz(other, tree(tmp_path / "2", names[::-1], time.time(), 0o755), "chart", 1_700_000_000)
    assert one.read_bytes() == other.read_bytes()
    with tarfile.open(one) as tar:
        entries = tar.getmembers()
    assert [entry.name for entry in entries] == ["chart/a/b.yaml", "chart/a/c.yaml", "chart/b.yaml"]
    assert {(e.mtime, e.uid, e.gid, e.uname, e.mode) for e in entries} == {(1_700_000_000, 0, 0, "", 0o644)}
    # Bytes 4 to 7 of gzip's header are its time, the flags in byte 3 say that it has no name.
    assert one.read_bytes()[3:8] == b"\0" * 5
    archives.write_tgz(other, tmp_path / "2", "chart", 1_700_000_001)
    assert one.read_bytes() != other.read_bytes()


def test_a_tar_of_another_program_is_settled(tmp_path: Path) -> None:
    content = tree(tmp_path / "content", ["b", "a"], 1e9, 0o600)
    for name, order in (("1.tar", "ab"), ("2.tar", "ba")):
        with tarfile.open(tmp_path / name, "w") as tar:
            for member in order:
                os.utime(content / member)
                tar.add(content / member, member)
        archives.settle_tar(tmp_path / name, 5)
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()
    assert archives.members(tmp_path / "1.tar") == {"a": b"a", "b": b"b"}
    assert {path.name for path in tmp_path.iterdir()} == {"content", "1.tar", "2.tar"}


def test_what_differs_between_two_folders_is_named_down_to_the_member(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, text in ((one, "x"), (other, "y")):
        folder.mkdir()
        (folder / "same").write_text("z")
        (folder / "plain").write_text(text)
        with zipfile.ZipFile(folder / "w.whl", "w") as made:
            made.writestr("same", "z")
            made.writestr("inside", text)
        content = tree(folder / "c", ["a", "b"], 1, 0o644)
        archives.write_tgz(folder / "c.tgz", content, text, 1)
        archives.write_tgz(folder / "t.tgz", content, "p", ord(text))
        for left in content.iterdir():
            left.unlink()
        content.rmdir()
    (one / "extra").touch()
    assert archives.differing(one, other) == [
        "extra: only one of the builds made it",
        "c.tgz: differs in x/a, x/b, y/a, y/b",
        "plain: differs",
        "t.tgz: differs",
        "w.whl: differs in inside",
    ]
    assert archives.differing(one, one) == []
