"""A store of files in a directory that several engines may share, such as a claim mounted by all of them.

One folder per namespace, two levels of folders by the first digits of the key. Files are written to a temporary file
and renamed, never synced (one that a crash left empty or torn fails its checksum). They are evicted by last use when
their bytes exceed the bound; see ``sweeper``.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from kvserving_connector.store.client import Part, Reason, StoreFault, Usage, remaining
from kvserving_connector.store.sweeper import TEMPORARY, Sweeper

T = TypeVar("T")

_TOUCH_SECONDS = 60.0
_WRITE_PAUSE = 1.0

_REASONS = {
    errno.ENOENT: Reason.ABSENT,
    errno.ENOSPC: Reason.FULL,
    errno.EDQUOT: Reason.FULL,
    errno.EFBIG: Reason.FULL,
    errno.EROFS: Reason.READ_ONLY,
    errno.EACCES: Reason.DENIED,
    errno.EPERM: Reason.DENIED,
    errno.ENOTDIR: Reason.DENIED,
    errno.ETIMEDOUT: Reason.TIMEOUT,
}


class FileStore:
    """The client (see StoreClient). ``max_bytes`` bounds the files of all engines together.

    A system call on a network file system that hangs outlives its deadline; the caller must not wait for it.
    """

    def __init__(self, root: Path, max_bytes: int | None = None, clock: Callable[[], float] = time.time) -> None:
        """Never raises for a directory that cannot be used: what is asked of it then is a miss or a skip.

        ``max_bytes`` None means 85 % of the file system. ``clock`` gives Unix seconds.
        """
        self._root = root
        self._clock = clock
        self._sweeper = Sweeper(root, max_bytes, clock)
        self._closed = threading.Event()
        self._refused: tuple[Reason, float] | None = None

    @property
    def sweeper(self) -> Sweeper:
        """What evicts files."""
        return self._sweeper

    def exists(self, keys: Sequence[str], deadline: float) -> list[bool | Reason]:
        """See StoreClient."""
        found: list[bool | Reason] = []
        for key in keys:
            if self._closed.is_set():
                found.append(Reason.CLOSED)
            elif time.monotonic() >= deadline:
                found.append(Reason.TIMEOUT)
            else:
                found.append(self._is_there(key))
        return found

    def get(self, key: str, into: memoryview, deadline: float) -> int:
        """See StoreClient. A file that was not used for a minute is marked as used."""
        self._check_open()
        remaining(deadline)
        try:
            file = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                status = os.fstat(file)
                if status.st_size > len(into):
                    raise StoreFault(Reason.LENGTH, "an object longer than a chunk")
                have = 0
                while number := os.readv(file, [into[have:]]):
                    have += number
                    if have >= status.st_size:
                        break
                self._mark_used(file, status.st_mtime)
                return have
            finally:
                os.close(file)
        except OSError as error:
            raise _fault(error) from None

    def put(self, key: str, parts: Sequence[Part], deadline: float) -> bool:
        """See StoreClient."""
        self._check_open()
        remaining(deadline)
        self._check_writable()
        path = self._path(key)
        size = sum(len(part) for part in parts)
        try:
            if self._refresh(path):
                return False
            if not self._sweeper.reserve(size):
                raise StoreFault(Reason.FULL, "eviction has not made room yet")
            written = False
            try:
                self._write(path, parts)
                written = True
            finally:
                self._sweeper.settle(size, written=written)
        except OSError as error:
            fault = _fault(error, absent=Reason.UNREACHABLE)
            if fault.reason is Reason.FULL:
                self._sweeper.urge()
            if fault.reason in (Reason.FULL, Reason.READ_ONLY, Reason.DENIED):
                self._refused = fault.reason, time.monotonic() + _WRITE_PAUSE
            raise fault from None
        return True

    def delete(self, key: str, deadline: float) -> None:
        """See StoreClient."""
        self._check_open()
        remaining(deadline)
        try:
            self._path(key).unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            raise _fault(error) from None

    def listing(self, prefix: str, deadline: float) -> Iterator[Sequence[tuple[str, int]]]:
        """See ListedStore: a batch per folder."""
        self._check_open()
        for folder, _, names in os.walk(self._root, onerror=_raise_fault):
            remaining(deadline)
            batch = [(name, size) for name in names if name.startswith(prefix) and (size := _size(folder, name))]
            if batch:
                yield batch

    def usage(self, deadline: float) -> Usage:
        """See StoreClient: as of the last sweep, with what this engine wrote since."""
        self._check_open()
        return self._sweeper.usage()

    def close(self) -> None:
        """See StoreClient."""
        self._closed.set()
        self._sweeper.close()

    def _path(self, key: str) -> Path:
        folder, _, leaf = key.rpartition("-")
        if not folder or not leaf or "/" in key or key.startswith("."):
            raise StoreFault(Reason.KEY, "no name of an object")
        return self._root / folder / leaf[:2] / leaf[2:4] / key

    def _is_there(self, key: str) -> bool | Reason:
        try:
            os.stat(self._path(key))
        except OSError as error:
            reason = _fault(error).reason
            return False if reason is Reason.ABSENT else reason
        return True

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise StoreFault(Reason.CLOSED)

    def _check_writable(self) -> None:
        refused = self._refused
        if refused is not None and time.monotonic() < refused[1]:
            raise StoreFault(refused[0], "a write was refused a short while ago")

    def _mark_used(self, file: int, last: float) -> None:
        if self._clock() - last < _TOUCH_SECONDS:
            return
        try:
            # The file system's own time, which is one for all engines.
            os.utime(file)
        except OSError as error:
            # Read-only mounts and files of another user serve all the same; their owner evicts them.
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise

    def _refresh(self, path: Path) -> bool:
        try:
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def _write(self, path: Path, parts: Sequence[Part]) -> None:
        scratch = self._root / TEMPORARY
        temporary = scratch / uuid.uuid4().hex
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = _with_folder(scratch, lambda: os.open(temporary, flags, 0o660))
        try:
            try:
                _write_all(file, parts)
            finally:
                os.close(file)
            _with_folder(path.parent, lambda: os.rename(temporary, path))
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _raise_fault(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise _fault(error)


def _size(folder: str, name: str) -> int:
    """Bytes of a file; 0 for one that was evicted meanwhile."""
    try:
        return os.stat(os.path.join(folder, name)).st_size
    except FileNotFoundError:
        return 0


def _with_folder(folder: Path, operation: Callable[[], T]) -> T:
    """Run ``operation``; when a folder is missing, make it and try again: a sweep may remove empty ones meanwhile."""
    for _ in range(3):
        try:
            return operation()
        except FileNotFoundError:
            folder.mkdir(parents=True, exist_ok=True)
    return operation()


def _write_all(file: int, parts: Sequence[Part]) -> None:
    views = [memoryview(part) for part in parts]
    while views:
        written = os.writev(file, views)
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if views and written:
            views[0] = views[0][written:]


def _fault(error: OSError, absent: Reason = Reason.ABSENT) -> StoreFault:
    reason = _REASONS.get(error.errno or 0, Reason.IO)
    return StoreFault(absent if reason is Reason.ABSENT else reason, error.strerror or type(error).__name__)
