"""Reading logs: their last lines, and what is appended from now on."""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Iterator, Mapping
from pathlib import Path

_IN_MODIFY, _IN_CREATE, _IN_MOVED_TO = 0x2, 0x100, 0x80


def tail(logs: Mapping[str, Path], lines: int) -> Iterator[tuple[str, str]]:
    """Key and text of the last lines of each log, the older file included where the current one is short."""
    for key, path in logs.items():
        text: list[str] = []
        for part in (path.with_name(path.name + ".1"), path) if _turned_over(path) else (path,):
            text += part.read_text(errors="replace").splitlines()
        for line in text[len(text) - lines if lines < len(text) else 0 :] if lines else ():
            yield key, line


def follow(logs: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    """Key and text of each line that is appended, also after a log was turned over. Ends only by interruption."""
    readers = {key: _Reader(path) for key, path in logs.items()}
    with _Watch({path.parent for path in logs.values()}) as watch:
        while True:
            for key, reader in readers.items():
                for line in reader.lines():
                    yield key, line
            watch.wait()


def _turned_over(path: Path) -> bool:
    older = path.with_name(path.name + ".1")
    # An older file that ended before the current one began is of this run only when it is full.
    return older.exists() and older.stat().st_size > path.stat().st_size and path.stat().st_size < 65536


class _Reader:
    """Position in one log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        self._file.seek(0, os.SEEK_END)
        self._partial = b""

    def lines(self) -> Iterator[str]:
        yield from self._rest()
        try:
            moved = os.stat(self._path).st_ino != os.fstat(self._file.fileno()).st_ino
        except FileNotFoundError:
            return
        if moved:
            yield from self._rest()
            self._file.close()
            self._file = self._path.open("rb")
            yield from self._rest()

    def _rest(self) -> Iterator[str]:
        *whole, self._partial = (self._partial + self._file.read()).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")


class _Watch:
    """The kernel's notice of changes in folders."""

    def __init__(self, folders: set[Path]) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self._descriptor = library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        for folder in folders:
            mask = _IN_MODIFY | _IN_CREATE | _IN_MOVED_TO
            if library.inotify_add_watch(self._descriptor, os.fsencode(folder), mask) < 0:
                raise OSError(ctypes.get_errno(), "inotify_add_watch", str(folder))

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def wait(self) -> None:
        select.select([self._descriptor], [], [])
        os.read(self._descriptor, 65536)
