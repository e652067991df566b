"""Archives whose bytes depend on their content alone: sorted, with one time, one owner and two kinds of modes."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

_WRITING = ".writing"


def write_tgz(output: Path, folder: Path, prefix: str, epoch: int) -> None:
    """Write the files of ``folder`` below ``prefix``, all of the time ``epoch``; hidden files are left out."""
    # What Helm leaves out by the chart's .helmignore; a test compares.
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not _hidden(path.relative_to(folder)))
    # Neither a name nor a time in gzip's header.
    with (
        output.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=9, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for file in files:
            entry = tarfile.TarInfo(f"{prefix}/{file.relative_to(folder).as_posix()}")
            _add(tar, entry, file.read_bytes(), epoch)


def settle_tar(archive: Path, epoch: int) -> None:
    """Write a tar of files again, sorted and of the time ``epoch``."""
    fresh = archive.with_name(archive.name + _WRITING)
    with tarfile.open(archive, "r:") as old, tarfile.open(fresh, "w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted((entry for entry in old if entry.isreg()), key=lambda entry: entry.name):
            content = old.extractfile(member)
            assert content is not None
            _add(new, tarfile.TarInfo(member.name), content.read(), epoch)
    fresh.rename(archive)


def sha256(file: Path) -> str:
    """Return the checksum of a file, in hexadecimal digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def differing(first: Path, second: Path) -> list[str]:
    """Return a line for each file that only one of two folders has, or that differs; members of archives are named."""
    left, right = ({path.name: path for path in folder.iterdir()} for folder in (first, second))
    told = [f"{name}: only one of the builds made it" for name in sorted(left.keys() ^ right.keys())]
    for name in sorted(left.keys() & right.keys()):
        if left[name].read_bytes() != right[name].read_bytes():
            one, other = members(left[name]), members(right[name])
            inside = sorted(member for member in one.keys() | other.keys() if one.get(member) != other.get(member))
            told.append(f"{name}: differs" + (f" in {', '.join(inside[:5])}" if inside else ""))
    return told


def members(archive: Path) -> Mapping[str, bytes]:
    """Return what an archive holds, by name; nothing for a file of another kind."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            return {name: opened.read(name) for name in opened.namelist()}
    if archive.suffix in (".tgz", ".tar"):
        with tarfile.open(archive) as tar:
            found = {}
            for entry in tar:
                if (content := tar.extractfile(entry)) is not None:
                    found[entry.name] = content.read()
            return found
    return {}


def _add(tar: tarfile.TarFile, entry: tarfile.TarInfo, data: bytes, epoch: int) -> None:
    entry.size = len(data)
    entry.mtime = epoch
    entry.mode = 0o644
    tar.addfile(entry, io.BytesIO(data))


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
