"""A store of files in a directory that several engines may share, such as a claim mounted by all of them.

Files are written to a temporary file and renamed, never synced (one that a crash left empty or torn fails its
checksum). They are evicted by last use when their bytes exceed the bound; see ``sweeper``, also for where they lie.
What is no regular file is no object, whatever its name.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from kvserving_connector.store.address import Credentials, folder
from kvserving_connector.store.client import Part, Reason, StoreFault, Usage, remaining
from kvserving_connector.store.sweeper import Sweeper, object_path, remove_empty, temporary_path, walk

T = TypeVar("T")

_EXAMPLE = "file:///var/lib/kv"
_TOUCH_SECONDS = 60.0
_WRITE_PAUSE = 1.0
_ATTEMPTS = 8

_REASONS = {
    errno.ENOENT: Reason.ABSENT,
    # A symbolic link, or a socket, under an object's name.
    errno.ELOOP: Reason.ABSENT,
    errno.ENXIO: Reason.ABSENT,
    errno.ENOSPC: Reason.DISK_FULL,
    errno.EDQUOT: Reason.DISK_FULL,
    errno.EFBIG: Reason.DISK_FULL,
    errno.EROFS: Reason.READ_ONLY,
    errno.EACCES: Reason.DENIED,
    errno.EPERM: Reason.DENIED,
    errno.ENOTDIR: Reason.DENIED,
    errno.ETIMEDOUT: Reason.TIMEOUT,
}


def open_folder(urls: Sequence[str], max_bytes: int | None, _credentials: Credentials) -> FileStore:
    """Return the client of the one ``file://`` address in ``urls``. Raises ValueError for more of them or no path."""
    if len(urls) > 1:
        raise ValueError("urls: a directory is a store of its own; give one file:// address alone")
    return FileStore(folder(urls[0], _EXAMPLE), max_bytes)


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
            # O_NONBLOCK: to open a FIFO would wait for its writer.
            file = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                status = os.fstat(file)
                if not stat.S_ISREG(status.st_mode):
                    raise StoreFault(Reason.ABSENT, "no regular file")
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
            if (reason := self._sweeper.reserve(size)) is not None:
                raise StoreFault(reason, "eviction has not made room yet")
            written = False
            try:
                self._write(path, parts)
                written = True
            finally:
                self._sweeper.settle(size, written=written)
        except OSError as error:
            fault = _fault(error, absent=Reason.UNREACHABLE)
            if fault.reason is Reason.DISK_FULL:
                self._sweeper.urge()
            if fault.reason in (Reason.DISK_FULL, Reason.READ_ONLY, Reason.DENIED):
                self._refused = fault.reason, time.monotonic() + _WRITE_PAUSE
            raise StoreFault(fault.reason, f"{fault.detail} in {self._root}") from None
        return True

    def delete(self, key: str, deadline: float) -> None:
        """See StoreClient."""
        self._check_open()
        remaining(deadline)
        path = self._path(key)
        try:
            path.unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            raise _fault(error) from None
        remove_empty(str(path.parent), self._root)

    def listing(self, prefix: str, deadline: float) -> Iterator[Sequence[tuple[str, int]]]:
        """See ListedStore: a batch per folder. What cannot be read is told after all that can be was yielded."""
        self._check_open()
        refusals: list[OSError] = []
        try:
            for found in walk(self._root, refusals.append, prefix):
                remaining(deadline)
                named = ((os.path.basename(path), status.st_size) for path, status in found)
                batch = [(name, size) for name, size in named if name.startswith(prefix)]
                if batch:
                    yield batch
        except FileNotFoundError:
            return
        except OSError as error:
            raise _fault(error) from None
        if refusals:
            raise _fault(refusals[0])

    def usage(self, deadline: float) -> Usage:
        """See StoreClient: as of the last sweep, or else measured, with what this engine wrote since."""
        self._check_open()
        try:
            return self._sweeper.usage(deadline)
        except OSError as error:
            raise _fault(error) from None

    def close(self) -> None:
        """See StoreClient."""
        self._closed.set()
        self._sweeper.close()

    def _path(self, key: str) -> Path:
        path = object_path(key)
        if path is None:
            raise StoreFault(Reason.KEY, "no name of an object")
        return self._root / path

    def _is_there(self, key: str) -> bool | Reason:
        try:
            return stat.S_ISREG(os.lstat(self._path(key)).st_mode)
        except StoreFault as fault:
            return fault.reason
        except OSError as error:
            reason = _fault(error).reason
            return False if reason is Reason.ABSENT else reason

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
        _touch(file)

    def _refresh(self, path: Path) -> bool:
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                return False
            _touch(path)
        except FileNotFoundError:
            return False
        return True

    def _write(self, path: Path, parts: Sequence[Part]) -> None:
        temporary = self._root / temporary_path()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = _with_folder(temporary.parent, lambda: os.open(temporary, flags, 0o660))
        try:
            try:
                _write_all(file, parts)
            finally:
                os.close(file)
            _with_folder(path.parent, lambda: os.rename(temporary, path))
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _touch(file: int | Path) -> None:
    """Mark a file as used, in the file system's own time, which is one for all engines."""
    try:
        os.utime(file)
    except OSError as error:
        # Read-only mounts and files of another user serve all the same; their owner evicts them.
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise


def _with_folder(folder: Path, operation: Callable[[], T]) -> T:
    """Run ``operation``; when a folder is missing, make it and try again: others may remove empty ones at any time."""
    for _ in range(_ATTEMPTS):
        try:
            return operation()
        except FileNotFoundError:
            # It vanished again while it was made, or something else has its name: ``operation`` tells which.
            with suppress(FileNotFoundError, FileExistsError):
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
