"""Reading logs: their last lines, and what is appended from now on."""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from . import runlogs
from .runlogs import earlier

_IN_MODIFY, _IN_CREATE, _IN_MOVED_TO = 0x2, 0x100, 0x80


def tail(logs: Mapping[str, Path], lines: int) -> Iterator[tuple[str, str]]:
    """Key and text of the last lines of each log, the older file of its run included where the current one is short."""
    for key, path in logs.items():
        text = _text(path).splitlines()
        if len(text) < lines:
            text = _lines(path)
        for line in text[-lines:] if lines else ():
            yield key, line


def ended_run(path: Path) -> Sequence[str]:
    """What a log has of the process that ended last, the line that tells its end included; nothing where none did."""
    return runlogs.ended_run(_lines(path))


def end_before(path: Path, tail: int) -> str | None:
    """What tells the end of a process, where it stands before the last lines of a log; None where none does."""
    lines = _lines(path)
    run = runlogs.ended_run(lines[: -tail or None])
    return run[-1].removeprefix(runlogs.OWN) if run and not runlogs.ended_run(lines[-tail:]) else None


def follow(logs: Mapping[str, Path], begun: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    """Key and text of each line that is appended, also after a log was turned over. Ends only by interruption.

    ``begun`` gets the key of each log whose next lines are of a run that began since.
    """
    readers = {key: _Reader(path) for key, path in logs.items()}
    with _Watch({path.parent for path in logs.values()}) as watch:
        while True:
            for key, reader in readers.items():
                for line in reader.lines():
                    if line is None:
                        begun(key)
                    else:
                        yield key, line
            watch.wait()


def _lines(path: Path) -> list[str]:
    """The lines of a run of the service, those of its older file included."""
    return (_text(runlogs.older(path)) + _text(path)).splitlines()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


class _Reader:
    """Position in one log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("rb")
        except FileNotFoundError:  # the next run has just begun
            self._file = earlier(path).open("rb")
        self._file.seek(0, os.SEEK_END)
        self._partial = b""

    def lines(self) -> Iterator[str | None]:
        """What was appended since, and None before the first line of another run."""
        yield from self._rest()
        try:
            moved = os.stat(self._path).st_ino != os.fstat(self._file.fileno()).st_ino
        except FileNotFoundError:
            return
        if moved:
            yield from self._rest()
            if self._is_of_earlier_run:
                if self._partial:
                    yield self._partial.decode(errors="replace")
                    self._partial = b""
                yield None
            self._file.close()
            self._file = self._path.open("rb")
            yield from self._rest()

    @property
    def _is_of_earlier_run(self) -> bool:
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._file.fileno()), earlier(self._path).stat())
        return False

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
