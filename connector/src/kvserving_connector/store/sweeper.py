"""Eviction of a directory of files by bytes and age, beside any number of writers, readers and other sweepers.

A file's modification time is its last use. A sweep measures everything, removes what was used longest ago until a tenth
of the bound is free, and removes temporary files that nobody finished. Unlinking is safe at any time: a reader keeps
the file it has open, a writer renames a new one into place. Between two sweeps of its own an engine writes an eighth of
that tenth at most, so that eight engines stay below the bound together.

The directory may hold what others put there: only regular files that ``object_path`` and ``temporary_path`` name, where
they place them, are counted or removed. An entry that cannot be read or removed is left out and told, nothing more.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kvserving_connector.store.client import Reason, Usage, remaining

logger = logging.getLogger("vllm.kvserving")

TEMPORARY = "tmp"
_LOCK = "sweep.lock"
_LOW = 0.9
_ENGINES = 8
_STALE_SECONDS = 600.0
_INTERVAL_SECONDS = 300.0
_RETRY_SECONDS = 0.2
_DEFAULT_SHARE = 0.85

_SPACE = re.compile(r"kv[0-9]+-[0-9a-f]+")
_DIGITS = re.compile(r"[0-9a-z]{2}")
# Of any format version, so that what older engines left is evicted as well. Letters above f: the keys named "about".
_OBJECT = re.compile(rf"({_SPACE.pattern})-({_DIGITS.pattern})({_DIGITS.pattern})[0-9a-z]*")
_TEMPORARY = re.compile(r"[0-9a-f]{32}\.kvserving")
_DEPTH = 3

# Why the lock file alone may fail to open; any other reason is the directory's.
_NO_LOCK = frozenset({errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENOSPC, errno.EDQUOT})


def object_path(key: str) -> str | None:
    """Return the path of an object below the root: a folder per namespace, two levels by the key's first digits.

    None when ``key`` is no name of an object.
    """
    match = _OBJECT.fullmatch(key)
    return os.path.join(*match.groups(), key) if match else None


def temporary_path() -> str:
    """Return a new path below the root for a file that is being written."""
    return os.path.join(TEMPORARY, f"{uuid.uuid4().hex}.kvserving")


def walk(
    root: Path, refused: Callable[[OSError], None], prefix: str = ""
) -> Iterator[list[tuple[str, os.stat_result]]]:
    """Yield path and status of every object below ``root``, a batch per folder, which may be empty.

    Folders that can hold no name with ``prefix`` are not entered; the others hold names without it as well. Raises
    OSError when ``root`` cannot be read. Where anything below cannot be read, ``refused`` is told and the rest goes on;
    what others remove meanwhile is left out.
    """
    spaces = [(entry, f"{entry.name}-") for entry in _entries(root, _SPACE)]
    folders = [(entry, 1) for entry, start in spaces if start.startswith(prefix) or prefix.startswith(start)]
    while folders:
        folder, depth = folders.pop()
        try:
            if not folder.is_dir(follow_symlinks=False):
                continue
            inside = _entries(folder.path, _DIGITS if depth < _DEPTH else _OBJECT)
        except FileNotFoundError:
            continue
        except OSError as error:
            refused(error)
            continue
        if depth < _DEPTH:
            folders += [(entry, depth + 1) for entry in inside]
            continue
        placed = [entry for entry in inside if entry.path == os.path.join(root, object_path(entry.name) or "")]
        yield list(_regular(placed, refused))


def remove_empty(folder: str, root: Path) -> None:
    """Remove ``folder`` and those above it below ``root`` while they are empty. Never raises: one may well stay."""
    while folder != str(root):
        try:
            os.rmdir(folder)
        except OSError:
            return
        folder = os.path.dirname(folder)


def _entries(folder: str | Path, pattern: re.Pattern[str]) -> list[os.DirEntry[str]]:
    with os.scandir(os.fspath(folder)) as entries:
        return [entry for entry in entries if pattern.fullmatch(entry.name)]


def _regular(
    entries: list[os.DirEntry[str]], refused: Callable[[OSError], None]
) -> Iterator[tuple[str, os.stat_result]]:
    for entry in entries:
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        except OSError as error:
            refused(error)
            continue
        if stat.S_ISREG(status.st_mode):
            yield entry.path, status


@dataclass(frozen=True)
class Swept:
    """How one sweep went; ``skipped`` when another engine's sweep was under way.

    ``refused`` entries could not be read or removed; ``refusal`` says why the first could not.
    """

    skipped: bool = False
    refused: int = 0
    refusal: str = ""


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

    def reserve(self, size: int) -> Reason | None:
        """Return why ``size`` more bytes may not be written now, FULL or BUSY; None when they may.

        ``settle`` must follow where they may. The first call measures the directory. BUSY until the next sweep has
        ended when this engine's share is used up.

        Raises OSError when the directory cannot be measured: its size is then unknown.
        """
        if self._total is None:
            self._root.mkdir(parents=True, exist_ok=True)
        total = self._measure()
        self._start()
        share, limit = self._share(), self.limit()
        with self._lock:
            total = self._total if self._total is not None else total
            used = self._written + self._reserved
            fits = limit is None or total + used + size <= limit
            admitted = fits and (used == 0 or used + size <= share)
            if admitted:
                self._reserved += size
        if admitted:
            return None
        self._wake.set()
        return Reason.BUSY if fits else Reason.FULL

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

    def usage(self, deadline: float) -> Usage:
        """Return the bytes of the last sweep and what was written since; measure when there was none yet.

        Raises OSError when the directory cannot be measured, and StoreFault when that takes longer than ``deadline``.
        """
        with suppress(FileNotFoundError):
            self._measure(deadline)
        with self._lock:
            used = (self._total or 0) + self._written
        return Usage(used, self.limit(), self._free())

    def _free(self) -> int | None:
        try:
            status = os.statvfs(self._root)
        except OSError:
            return None
        return int(status.f_bavail * status.f_frsize)

    def _measure(self, deadline: float | None = None) -> int:
        with self._measuring:
            if self._total is None:
                total = 0
                for batch in walk(self._root, _pass_over):
                    if deadline is not None:
                        remaining(deadline)
                    total += sum(_allocated(status) for _, status in batch)
                self._total = total
            return self._total

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
            refusals: list[OSError] = []
            with self._lock:
                before = self._written
            files = sorted(
                (status.st_mtime, _allocated(status), path)
                for batch in walk(self._root, refusals.append)
                for path, status in batch
            )
            found = sum(size for _, size, _ in files)
            removed = self._evict(files, found, urged, refusals)
            with self._lock:
                self._total = found - removed
                self._written -= before
            self._remove_stale(refusals)
        return Swept(refused=len(refusals), refusal=_text(refusals[0]) if refusals else "")

    def _evict(self, files: list[tuple[float, int, str]], found: int, urged: bool, refusals: list[OSError]) -> int:
        """Remove what is due of ``files``, the least recently used first; return how many bytes that were."""
        limit = self.limit()
        target = found
        if limit is not None and (found > limit * _LOW or urged):
            target = int(limit * _LOW)
        if urged:
            target = min(target, int(found * _LOW))
        oldest = self._clock() - self._max_age if self._max_age is not None else float("-inf")
        removed = 0
        folders: set[str] = set()
        for used, size, path in files:
            if found - removed <= target and used >= oldest:
                break
            if not _unlink(path, refusals):
                continue
            removed += size
            folders.add(os.path.dirname(path))
        for folder in folders:
            remove_empty(folder, self._root)
        return removed

    def _remove_stale(self, refusals: list[OSError]) -> None:
        stale = self._clock() - _STALE_SECONDS
        try:
            entries = _entries(self._root / TEMPORARY, _TEMPORARY)
        except FileNotFoundError:
            return
        except OSError as error:
            refusals.append(error)
            return
        for path, status in _regular(entries, refusals.append):
            if status.st_mtime < stale:
                _unlink(path, refusals)

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Hold the directory's sweep lock; False when another engine has it.

        Without a lock two sweeps at once remove more than they need, nothing worse.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(self._root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o660)
        except OSError as error:
            if error.errno not in _NO_LOCK:
                raise
            file = None
        if file is None:
            yield True
            return
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    yield False
                    return
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS):
                    raise
                # A file system without locks.
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
                swept = self.sweep()
            except OSError as error:
                text = _text(error)
            else:
                pause = _RETRY_SECONDS if swept.skipped else _INTERVAL_SECONDS
                if swept.skipped:
                    continue
                text = f"some of its files, {swept.refusal}" if swept.refused else ""
            if text and text != complaint:
                logger.warning("KVServing: the store's directory %s cannot be swept: %s", self._root, text)
            complaint = text


def _unlink(path: str, refusals: list[OSError]) -> bool:
    """Whether the file is gone, by whoever's hand."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        refusals.append(error)
        return False
    return True


def _allocated(status: os.stat_result) -> int:
    return max(status.st_size, status.st_blocks * 512)


def _pass_over(error: OSError) -> None:
    """What cannot be read does not count; the first sweep, which follows, tells of it."""


def _text(error: OSError) -> str:
    return error.strerror or type(error).__name__
