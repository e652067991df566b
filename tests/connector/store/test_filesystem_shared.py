"""Directories that hold more than the store put there: files of others, odd entries, folders that come and go."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.connector.store.servers import expect, reason, soon, wait_for

from kvserving_connector.store.client import Reason, StoreFault
from kvserving_connector.store.filesystem import FileStore
from kvserving_connector.store.framing import object_name
from kvserving_connector.store.inventory import about_key, holdings, purge
from kvserving_connector.store.sweeper import TEMPORARY, Sweeper, temporary_path

KIB = 1024
LIMIT = 2000 * KIB
BODY = bytes(4 * KIB)
A, B = bytes(range(32)), bytes(range(32, 64))


def name(index: int, namespace: bytes = A) -> str:
    return object_name(namespace, index.to_bytes(2, "big") + bytes(34))


def place(store: FileStore, index: int, seconds: float = 0.0, namespace: bytes = A) -> Path:
    """Put an object that was used ``seconds`` ago."""
    store.put(name(index, namespace), [BODY], soon())
    path = store._path(name(index, namespace))
    used = time.time() - seconds
    os.utime(path, (used, used))
    return path


def foreign(path: Path, size: int = 10 * LIMIT) -> Path:
    """A file of others, older than anything."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
    os.utime(path, (1, 1))
    return path


def refuse(monkeypatch: pytest.MonkeyPatch, call: str, target: Path, number: int) -> None:
    """Let one call of ``os`` fail on one path, as root's tests cannot have it otherwise."""
    real = getattr(os, call)

    def refusing(path: str | Path, *arguments: object, **named: object) -> object:
        if str(path) == str(target):
            raise OSError(number, os.strerror(number))
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, call, refusing)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "l2"


@pytest.fixture
def store(root: Path) -> Iterator[FileStore]:
    store = FileStore(root, LIMIT)
    yield store
    store.close()


def test_a_folder_of_root_stops_neither_stores_nor_listings(tmp_path: Path) -> None:
    """``lost+found`` of a fresh volume, and an engine that is not root."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    root = tmp_path / "volume"
    root.mkdir()
    root.chmod(0o777)
    (root / "lost+found").mkdir(mode=0o700)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == 0 and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    tmp_path.chmod(0o755)
    child = os.fork()
    if child == 0:
        os.setresuid(65534, 65534, 65534)
        code = 1
        try:
            store = FileStore(root, LIMIT)
            stored = store.put(name(1), [BODY], soon())
            listed = [key for batch in store.listing("kv1-", soon()) for key, _ in batch]
            swept = store.sweeper.sweep()
            code = 0 if stored and listed == [name(1)] and not swept.refused else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("entry", ["dir", temporary_path().partition("/")[2]], ids=["of others", "of ours"])
def test_a_directory_among_temporary_files_does_not_stop_eviction(store: FileStore, root: Path, entry: str) -> None:
    (root / TEMPORARY / entry).mkdir(parents=True)
    os.utime(root / TEMPORARY / entry, (1, 1))
    stored = 0
    for index in range(550):
        stored += wait_for_room(store, index)
    assert stored == 550
    assert (root / TEMPORARY / entry).is_dir()


def wait_for_room(store: FileStore, index: int) -> bool:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            return store.put(name(index), [BODY], soon())
        except StoreFault as fault:
            expect(fault, Reason.FULL, Reason.BUSY)
            # Not the second's pause after a refusal: a store that has room again is all that is asked here.
            store._refused = None
            time.sleep(0.005)
    pytest.fail("eviction makes no room")


def test_a_file_that_cannot_be_removed_leaves_the_others_to_eviction(
    store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    store = FileStore(root, 100 * LIMIT)
    paths = [place(store, index, seconds=1000 - index) for index in range(60)]
    store.close()
    refuse(monkeypatch, "unlink", paths[0], errno.EBUSY)
    sweeper = Sweeper(root, 200 * KIB)
    swept = sweeper.sweep()
    assert (swept.refused, swept.refusal) == (1, os.strerror(errno.EBUSY))
    left = sum(max(path.stat().st_size, path.stat().st_blocks * 512) for path in paths if path.exists())
    assert sweeper.usage(soon()).used_bytes == left <= 180 * KIB
    assert paths[0].exists()
    assert not paths[1].exists()


@pytest.mark.parametrize("number", [errno.EISDIR, errno.EPERM, errno.EBUSY, errno.EIO])
def test_what_was_written_is_settled_although_an_entry_refuses(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    stale = foreign(root / temporary_path(), size=1)
    refuse(monkeypatch, "unlink", stale, number)
    sweeper = Sweeper(root, LIMIT)
    monkeypatch.setattr(sweeper, "_start", lambda: None)
    assert sweeper.reserve(20 * KIB) is None
    sweeper.settle(20 * KIB, written=True)
    assert sweeper.reserve(20 * KIB) is not None
    assert sweeper.sweep().refused == 1
    assert sweeper.reserve(20 * KIB) is None


def test_a_folder_of_objects_that_cannot_be_read_is_told_after_the_others(
    store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place(store, 1)
    lost = place(store, 2, namespace=B)
    refuse(monkeypatch, "scandir", lost.parent, errno.EACCES)
    keys: list[str] = []

    def look() -> None:
        for batch in store.listing("kv1-", soon()):
            keys.extend(key for key, _ in batch)

    assert reason(look) is Reason.DENIED
    assert keys == [name(1)]
    assert purge(store, A[:16].hex(), soon()).objects == 1
    with caplog.at_level(logging.WARNING, "vllm.kvserving"):
        assert store.put(name(3), [BODY], soon())
        store.sweeper.urge()
        wait_for(lambda: os.strerror(errno.EACCES) in caplog.text)
        store.sweeper.urge()
        store.close()
    assert caplog.text.count("cannot be swept") == 1


@pytest.mark.parametrize(("number", "expected"), [(errno.EACCES, Reason.DENIED), (errno.EIO, Reason.IO)])
def test_a_root_that_cannot_be_read_is_told(
    store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: Reason
) -> None:
    root.mkdir()
    refuse(monkeypatch, "scandir", root, number)
    assert reason(lambda: store.put(name(1), [BODY], soon())) is expected
    assert reason(lambda: list(store.listing("kv1-", soon()))) is expected
    assert reason(lambda: store.usage(soon())) is expected
    with pytest.raises(OSError, match=os.strerror(number)):
        store.sweeper.sweep()


def test_a_lock_that_is_a_directory_or_a_link_does_not_stop_sweeps(root: Path, tmp_path: Path) -> None:
    (root / "sweep.lock").mkdir(parents=True)
    assert not Sweeper(root, LIMIT).sweep().skipped
    (root / "sweep.lock").rmdir()
    (root / "sweep.lock").symlink_to(tmp_path / "elsewhere")
    assert not Sweeper(root, LIMIT).sweep().skipped
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("urged", [False, True])
def test_files_of_others_are_neither_counted_nor_removed(store: FileStore, root: Path, urged: bool) -> None:
    own = place(store, 1, seconds=100)
    store.sweeper.close()
    (root / TEMPORARY / ("0" * 32)).mkdir()
    others = [
        foreign(root / path)
        for path in (
            "notes.txt",
            "models/llama/weights.safetensors",
            "tmp/notes.txt",
            f"tmp/{'ab' * 16}",
            name(2),
            f"kv1-{A[:16].hex()}/notes.txt",
            f"kv1-{A[:16].hex()}/00/01/notes.txt",
            f"kv1-{A[:16].hex()}/ff/ff/{name(2)}",
            f"kv1-{B[:16].hex()}/00/02/{name(2)}",
            f"{name(2)}.part",
        )
    ]
    before = [path.stat().st_size for path in others]
    sweeper = Sweeper(root, LIMIT, max_age_seconds=1000)
    sweeper._urged = urged
    sweeper.sweep()
    assert sweeper.usage(soon()).used_bytes == (0 if urged else len(BODY))
    assert [path.stat().st_size for path in others] == before
    assert own.exists() is not urged
    assert [key for batch in store.listing("kv1-", soon()) for key, _ in batch] == ([] if urged else [name(1)])
    assert sweeper.sweep().refused == 0


def test_objects_of_another_format_and_what_namespaces_are_for_are_evicted_too(store: FileStore, root: Path) -> None:
    older = foreign(root / f"kv0-{'ab' * 16}/00/11/kv0-{'ab' * 16}-0011", size=10)
    store.put(about_key(A), [b"{}"], soon())
    assert store._path(about_key(A)).exists()
    store.sweeper.close()
    Sweeper(root, LIMIT, clock=lambda: time.time() + 100, max_age_seconds=50).sweep()
    assert not older.exists()
    assert not store._path(about_key(A)).exists()


def test_a_name_that_no_sweep_would_find_is_no_name(store: FileStore) -> None:
    for key in ("notes-ab", "kv1-00-abc", "kv1-xyz-aabb", "kv1-00-../aabb", "kv1-00-AABB"):
        assert reason(lambda key=key: store.put(key, [BODY], soon())) is Reason.KEY  # type: ignore[misc]
        assert store.exists([key], soon()) == [Reason.KEY]


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to(foreign(path.parent / "elsewhere", 10))


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        here = os.open(path.parent, os.O_RDONLY)
        end.bind(f"/proc/self/fd/{here}/{path.name[:80]}")
        os.close(here)
    (path.parent / path.name[:80]).rename(path)


@pytest.mark.parametrize("make", [pipe, link, listener])
def test_what_is_no_regular_file_is_a_miss_and_makes_way(store: FileStore, make: Callable[[Path], None]) -> None:
    path = place(store, 1)
    path.unlink()
    make(path)
    answer: list[Reason] = []
    reader = threading.Thread(
        target=lambda: answer.append(reason(lambda: store.get(name(1), memoryview(bytearray(99)), soon()))),
        daemon=True,
    )
    reader.start()
    reader.join(3)
    assert answer == [Reason.ABSENT]
    assert store.exists([name(1)], soon()) == [False]
    assert store.put(name(1), [b"body"], soon())
    assert path.read_bytes() == b"body"
    assert not path.is_symlink()


def test_a_directory_under_an_objects_name_is_a_miss(store: FileStore) -> None:
    path = place(store, 1)
    path.unlink()
    path.mkdir()
    assert reason(lambda: store.get(name(1), memoryview(bytearray(99)), soon())) is Reason.ABSENT
    assert store.exists([name(1)], soon()) == [False]


def test_an_object_of_another_user_is_there_although_it_cannot_be_marked(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place(store, 1)
    refuse(monkeypatch, "utime", path, errno.EACCES)
    assert not store.put(name(1), [BODY], soon())
    assert store.put(name(2), [BODY], soon())


def test_usage_is_measured_by_an_engine_that_wrote_nothing(store: FileStore, root: Path) -> None:
    assert FileStore(root / "none", LIMIT).usage(soon()).used_bytes == 0
    assert not (root / "none").exists()
    place(store, 1)
    fresh = FileStore(root, LIMIT)
    assert fresh.usage(soon()).used_bytes == len(BODY)
    assert fresh.usage(soon()).limit_bytes == LIMIT
    assert reason(lambda: FileStore(root, LIMIT).usage(time.monotonic() - 1)) is Reason.TIMEOUT


def test_a_purge_leaves_no_folder(store: FileStore, root: Path) -> None:
    for index in range(0, 1000, 20):
        wait_for_room(store, index)
    store.close()
    store = FileStore(root, LIMIT)
    kept = place(store, 7, namespace=B)
    held = holdings(store, soon())
    assert purge(store, A[:16].hex(), soon()).objects == held[0].objects
    assert sorted(path for path in root.rglob("*") if path.is_dir()) == sorted(
        [root / TEMPORARY, *list(kept.parents)[:3]]
    )


def test_a_writer_outlasts_folders_that_vanish_while_it_makes_them(
    store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = os.mkdir, 5

    def mkdir(path: str | Path, mode: int = 0o777) -> None:
        nonlocal left
        if Path(path).parent == root / f"kv1-{A[:16].hex()}" / "00" and left:
            left -= 1
            shutil.rmtree(root / f"kv1-{A[:16].hex()}", ignore_errors=True)
        real(path, mode)

    monkeypatch.setattr(os, "mkdir", mkdir)
    assert store.put(name(1), [BODY], soon())
    assert not left


def test_writers_and_deleters_of_the_same_folders_get_along(root: Path) -> None:
    stores = [FileStore(root, 1000 * LIMIT) for _ in range(2)]
    end = time.monotonic() + 1
    faults: list[StoreFault] = []

    def work(store: FileStore, index: int, deletes: bool) -> None:
        while time.monotonic() < end:
            try:
                if deletes:
                    store.delete(name(index), soon())
                else:
                    store.put(name(index), [b"x"], soon())
            except StoreFault as fault:
                faults.append(fault)

    threads = [
        threading.Thread(target=work, args=(stores[number % 2], number // 2 % 2, number % 2 == 1))
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert not faults
