"""Eviction of a directory of files by bytes and age, beside any number of writers, readers and other sweepers.

A file's modification time is its last use. A sweep measures everything, removes what was used longest ago until a tenth
of the bound is free, and removes temporary files that nobody finished. Unlinking is safe at any time: a reader keeps
the file it has open, a writer renames a new one into place. Between two sweeps of its own an engine writes an eighth of
that tenth at most, so that eight engines stay below the bound together.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kvserving_connector.store.client import Usage

logger = logging.getLogger("vllm.kvserving")

TEMPORARY = "tmp"
_LOCK = "sweep.lock"
_LOW = 0.9
_ENGINES = 8
_STALE_SECONDS = 600.0
_INTERVAL_SECONDS = 300.0
_RETRY_SECONDS = 0.2
_DEFAULT_SHARE = 0.85


@dataclass(frozen=True)
class Swept:
    """What one sweep found and did; ``skipped`` when another engine's sweep was under way."""

    found_bytes: int = 0
    removed_bytes: int = 0
    removed_files: int = 0
    skipped: bool = False


class Sweeper:
    """Sweeps in a thread of its own once something was written. Thread-safe."""

    def __init__(
        self,
        root: Path,
        max_bytes: int | None,
        clock: Callable[[], float] = time.time,
        max_age_seconds: float | None = None,
    ) -> None:
        """``max_bytes`` None: 85 % of the file system. Files unused for ``max_age_seconds`` go whatever the bytes."""
        self._root = root
        self._max_bytes = max_bytes
        self._clock = clock
        self._max_age = max_age_seconds
        self._lock = threading.Lock()
        self._measuring = threading.Lock()
        self._total: int | None = None
        self._written = 0
        self._reserved = 0
        self._urged = False
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def reserve(self, size: int) -> bool:
        """Whether ``size`` more bytes may be written now; ``settle`` must follow if so.

        The first call measures the directory. False until the next sweep has ended when this engine's share is used up.
        Raises OSError when the directory cannot be measured: its size is then unknown.
        """
        with self._measuring:
            if self._total is None:
                self._root.mkdir(parents=True, exist_ok=True)
                self._total = sum(size for _, size, _ in self._files())
        self._start()
        share, limit = self._share(), self.limit()
        with self._lock:
            used = self._written + self._reserved
            fits = limit is None or self._total + used + size <= limit
            admitted = fits and (used == 0 or used + size <= share)
            if admitted:
                self._reserved += size
        if not admitted:
            self._wake.set()
        return admitted

    def settle(self, size: int, *, written: bool) -> None:
        """End a reservation, and sweep in good time when half of this engine's share is used up."""
        share = self._share()
        with self._lock:
            self._reserved -= size
            if written:
                self._written += size
            due = self._written * 2 >= share
        if due:
            self._wake.set()

    def _share(self) -> float:
        limit = self.limit()
        return float("inf") if limit is None else limit * (1 - _LOW) / _ENGINES

    def urge(self) -> None:
        """Sweep now, and make room although the bound is not reached: the file system itself is full."""
        self._start()
        with self._lock:
            self._urged = True
        self._wake.set()

    def limit(self) -> int | None:
        """Return the bound in bytes; None when the file system cannot be asked."""
        if self._max_bytes is not None:
            return self._max_bytes
        try:
            status = os.statvfs(self._root)
        except OSError:
            # The directory does not exist yet or cannot be reached; writing to it will say so.
            return None
        return int(status.f_blocks * status.f_frsize * _DEFAULT_SHARE)

    def usage(self) -> Usage:
        """Return the bytes of the last sweep and what was written since."""
        with self._lock:
            used = (self._total or 0) + self._written
        return Usage(used, self.limit())

    def close(self) -> None:
        """End the thread, after the sweep that runs. Idempotent."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def sweep(self) -> Swept:
        """Sweep once, here and now. Raises OSError when the directory cannot be read at all."""
        with self._lock:
            urged, self._urged = self._urged, False
        with self._alone() as alone:
            if not alone:
                return Swept(skipped=True)
            with self._lock:
                before = self._written
            files = sorted(self._files())
            found = sum(size for _, size, _ in files)
            removed, number = self._evict(files, found, urged)
            self._remove_stale()
            with self._lock:
                self._total = found - removed
                self._written -= before
        return Swept(found, removed, number)

    def _evict(self, files: list[tuple[float, int, str]], found: int, urged: bool) -> tuple[int, int]:
        limit = self.limit()
        target = found
        if limit is not None and (found > limit * _LOW or urged):
            target = int(limit * _LOW)
        if urged:
            target = min(target, int(found * _LOW))
        oldest = self._clock() - self._max_age if self._max_age is not None else float("-inf")
        removed = number = 0
        folders: set[str] = set()
        for used, size, path in files:
            if found - removed <= target and used >= oldest:
                break
            with suppress(FileNotFoundError):
                os.unlink(path)
            removed += size
            number += 1
            folders.add(os.path.dirname(path))
        for folder in folders:
            self._remove_empty(folder)
        return removed, number

    def _remove_empty(self, folder: str) -> None:
        """Remove a folder and those above it while they are empty."""
        root = str(self._root)
        while folder != root:
            try:
                os.rmdir(folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.EBUSY):
                    raise
                return
            folder = os.path.dirname(folder)

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """Last use, allocated bytes and path of every object."""
        with os.scandir(self._root) as entries:
            folders = [
                entry.path for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name != TEMPORARY
            ]
        while folders:
            # Another engine may remove what is empty while it is walked.
            with suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                        continue
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        yield status.st_mtime, max(status.st_size, status.st_blocks * 512), entry.path

    def _remove_stale(self) -> None:
        stale = self._clock() - _STALE_SECONDS
        with suppress(FileNotFoundError), os.scandir(self._root / TEMPORARY) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_mtime < stale:
                        os.unlink(entry.path)

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Hold the directory's sweep lock; False when another engine has it."""
        self._root.mkdir(parents=True, exist_ok=True)
        file = os.open(self._root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    yield False
                    return
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS):
                    raise
                # A file system without locks: two sweeps at once remove more than they need, nothing worse.
            yield True
        finally:
            os.close(file)

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None or self._closed:
                return
            self._thread = threading.Thread(target=self._run, name="kv-store-sweep", daemon=True)
            self._wake.set()
            self._thread.start()

    def _run(self) -> None:
        complaint = ""
        pause = _INTERVAL_SECONDS
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            with self._lock:
                if self._closed:
                    return
            try:
                pause = _RETRY_SECONDS if self.sweep().skipped else _INTERVAL_SECONDS
                complaint = ""
            except OSError as error:
                text = error.strerror or type(error).__name__
                if text != complaint:
                    logger.warning("KVServing: the store's directory %s cannot be swept: %s", self._root, text)
                    complaint = text
