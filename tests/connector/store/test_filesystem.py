"""The client on directories, also full, read-only and shared ones."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.connector.store.servers import expect, read_object, reason, soon, wait_for

from kvserving_connector.store.client import Reason, StoreFault
from kvserving_connector.store.filesystem import FileStore
from kvserving_connector.store.sweeper import TEMPORARY, Sweeper, temporary_path

BODY = os.urandom(200_000)
MIB = 2**20


def names(number: int, start: int = 0) -> list[str]:
    return [f"kv1-00-{index:072x}" for index in range(start, start + number)]


NAME = names(1)[0]


def read(store: FileStore, key: str = NAME, room: int = len(BODY) + 64) -> bytes:
    return read_object(store, key, room)


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and path.name.startswith("kv1-"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    store = FileStore(tmp_path / "l2", 100 * MIB)
    yield store
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB of its own. Needs root."""
    root = tmp_path / "disk"
    root.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(root)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a file system of its own cannot be mounted: {mounted.stderr.decode().strip()}")
    yield root
    subprocess.run(["umount", "-l", str(root)], check=True)


def test_objects_come_back_as_they_were_put(store: FileStore, tmp_path: Path) -> None:
    assert store.exists([NAME], soon()) == [False]
    assert store.put(NAME, [BODY[:7], memoryview(BODY)[7:]], soon())
    assert read(store) == BODY
    assert read(store, room=len(BODY)) == BODY
    assert store.exists([NAME, names(2)[1]], soon()) == [True, False]
    assert not store.put(NAME, [b"other"], soon())
    assert read(store) == BODY
    assert reason(lambda: read(store, room=10)) is Reason.LENGTH
    store.delete(NAME, soon())
    store.delete(NAME, soon())
    assert reason(lambda: read(store)) is Reason.ABSENT
    assert not list((tmp_path / "l2" / TEMPORARY).iterdir())


def test_objects_are_spread_over_folders(store: FileStore, tmp_path: Path) -> None:
    store.put("kv1-0011-abcdef", [b"x"], soon())
    assert files(tmp_path) == [tmp_path / "l2" / "kv1-0011" / "ab" / "cd" / "kv1-0011-abcdef"]


@pytest.mark.parametrize("key", ["../../etc-passwd", "/etc-x", "kv1", "..-x"])
def test_no_name_leads_out_of_the_directory(store: FileStore, key: str, tmp_path: Path) -> None:
    assert reason(lambda: store.put(key, [b"x"], soon())) is Reason.KEY


def test_a_truncated_file_comes_back_short_and_an_empty_one_empty(store: FileStore, tmp_path: Path) -> None:
    store.put(NAME, [BODY], soon())
    os.truncate(files(tmp_path)[0], 1000)
    assert read(store) == BODY[:1000]
    os.truncate(files(tmp_path)[0], 0)
    assert read(store) == b""


def test_a_file_deleted_between_look_up_and_read_is_a_miss(store: FileStore, tmp_path: Path) -> None:
    store.put(NAME, [BODY], soon())
    assert store.exists([NAME], soon()) == [True]
    files(tmp_path)[0].unlink()
    assert reason(lambda: read(store)) is Reason.ABSENT


def test_a_past_deadline_and_a_closed_store_are_told(store: FileStore) -> None:
    assert reason(lambda: store.put(NAME, [BODY], soon(-1))) is Reason.TIMEOUT
    assert reason(lambda: store.get(NAME, memoryview(bytearray(9)), soon(-1))) is Reason.TIMEOUT
    assert store.exists([NAME], soon(-1)) == [Reason.TIMEOUT]
    store.close()
    assert reason(lambda: store.put(NAME, [BODY], soon())) is Reason.CLOSED
    assert store.exists([NAME], soon()) == [Reason.CLOSED]


def test_a_full_disk_skips_keeps_what_is_there_and_makes_room(small_disk: Path) -> None:
    store = FileStore(small_disk, 1024 * MIB)
    try:
        refused = 0
        for key in names(30):
            try:
                store.put(key, [BODY], soon())
            except StoreFault as fault:
                expect(fault, Reason.DISK_FULL)
                refused += 1
        assert refused
        usage, disk = store.usage(soon()), os.statvfs(small_disk)
        assert usage.limit_bytes == 1024 * MIB
        assert usage.free_bytes is not None
        assert usage.free_bytes <= disk.f_blocks * disk.f_frsize < 1024 * MIB, "what the disk has, not the bound"
        assert not list((small_disk / TEMPORARY).iterdir())
        for key in names(30):
            try:
                assert read(store, key) == BODY
            except StoreFault as fault:
                expect(fault, Reason.ABSENT)
        wait_for(lambda: puts(store, names(1, 500)[0]))
        assert read(store, names(1, 500)[0]) == BODY
    finally:
        store.close()


def puts(store: FileStore, key: str) -> bool:
    try:
        return store.put(key, [BODY], soon())
    except StoreFault as fault:
        expect(fault, Reason.DISK_FULL)
        return False


def test_a_read_only_file_system_serves_reads_and_skips_writes(small_disk: Path) -> None:
    store = FileStore(small_disk, 100 * MIB)
    try:
        store.put(NAME, [BODY], soon())
        os.utime(files(small_disk)[0], (1, 1))
        store.sweeper.close()
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True, capture_output=True)
        assert read(store) == BODY
        assert reason(lambda: store.put(names(2)[1], [BODY], soon())) is Reason.READ_ONLY
        assert reason(lambda: store.delete(NAME, soon())) is Reason.READ_ONLY
        assert store.exists([NAME], soon()) == [True]
    finally:
        store.close()


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, Reason.DISK_FULL),
        (errno.EDQUOT, Reason.DISK_FULL),
        (errno.EFBIG, Reason.DISK_FULL),
        (errno.EROFS, Reason.READ_ONLY),
        (errno.EACCES, Reason.DENIED),
        (errno.EIO, Reason.IO),
        (errno.ESTALE, Reason.IO),
    ],
)
def test_every_refusal_of_the_system_is_a_skip_and_leaves_nothing(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: Reason
) -> None:
    def refuse(file: int, views: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "writev", refuse)
    assert reason(lambda: store.put(NAME, [BODY], soon())) is expected
    assert not files(tmp_path)
    assert not list((tmp_path / "l2" / TEMPORARY).iterdir())


def test_writes_in_pieces_are_whole(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    writev = os.writev

    def piece(file: int, views: list[memoryview]) -> int:
        return writev(file, [views[0][:70_001]])

    monkeypatch.setattr(os, "writev", piece)
    assert store.put(NAME, [BODY[:90_000], BODY[90_000:]], soon())
    assert read(store) == BODY


def test_a_directory_that_cannot_be_used_is_a_skip_and_a_miss(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = FileStore(tmp_path / "file" / "l2", 100 * MIB)
    try:
        assert reason(lambda: store.put(NAME, [BODY], soon())) is Reason.DENIED
        assert reason(lambda: read(store)) is Reason.DENIED
        assert store.exists([NAME], soon()) == [Reason.DENIED]
    finally:
        store.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_directory_is_a_skip(tmp_path: Path) -> None:
    root = tmp_path / "l2"
    root.mkdir(mode=0o555)
    store = FileStore(root, 100 * MIB)
    try:
        assert reason(lambda: store.put(NAME, [BODY], soon())) is Reason.DENIED
        assert store.exists([NAME], soon()) == [False]
    finally:
        store.close()


def test_an_unwritable_directory_is_a_skip_for_another_user(tmp_path: Path) -> None:
    """What root's tests cannot see in their own process."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    root = tmp_path / "l2"
    root.mkdir(mode=0o755)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    child = os.fork()
    if child == 0:
        os.setresuid(65534, 65534, 65534)
        store = FileStore(root, 100 * MIB)
        try:
            store.put(NAME, [BODY], soon())
        except StoreFault as fault:
            os._exit(0 if fault.reason is Reason.DENIED and store.exists([NAME], soon()) == [False] else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def age(root: Path, key: str, seconds: float) -> None:
    path = next(path for path in files(root) if path.name == key)
    os.utime(path, (time.time() - seconds, time.time() - seconds))


def test_eviction_takes_what_was_used_longest_ago(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 2000 * MIB)
    body = bytes(MIB)
    for index, key in enumerate(names(10)):
        assert store.put(key, [body], soon())
        age(tmp_path, key, 1000 - index)
    assert store.get(names(1)[0], memoryview(bytearray(MIB)), soon()) == MIB
    assert not store.put(names(2)[1], [body], soon())
    store.close()
    assert len(files(tmp_path)) == 10
    Sweeper(tmp_path, 9 * MIB).sweep()
    gone = set(names(10)) - {path.name for path in files(tmp_path)}
    assert gone == set(names(4)[2:])


def test_age_evicts_whatever_the_bytes_and_empty_folders_go(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 10 * MIB)
    store.put("kv1-00-aabb", [b"old"], soon())
    store.put("kv1-00-ccdd", [b"new"], soon())
    age(tmp_path, "kv1-00-aabb", 100)
    store.close()
    Sweeper(tmp_path, 10 * MIB, max_age_seconds=50).sweep()
    assert [path.name for path in files(tmp_path)] == ["kv1-00-ccdd"]
    assert not (tmp_path / "kv1-00" / "aa").exists()


def test_temporary_files_that_nobody_finished_go_after_a_while(tmp_path: Path) -> None:
    now = time.time()
    (tmp_path / TEMPORARY).mkdir()
    stale, fresh = (tmp_path / temporary_path() for _ in range(2))
    for path, seconds in ((stale, 3600), (fresh, 10)):
        path.write_bytes(b"x")
        os.utime(path, (now - seconds, now - seconds))
    Sweeper(tmp_path, MIB, clock=lambda: now).sweep()
    assert list((tmp_path / TEMPORARY).iterdir()) == [fresh]


def test_two_sweeps_at_once_are_one(tmp_path: Path) -> None:
    first, second = Sweeper(tmp_path, MIB), Sweeper(tmp_path, MIB)
    with first._alone() as alone:
        assert alone
        assert second.sweep().skipped
    assert not second.sweep().skipped


def test_several_engines_stay_within_the_bound_and_read_no_wrong_bytes(tmp_path: Path) -> None:
    """Six writers and two readers with sweepers of their own; 60 MiB go through a bound of 16 MiB."""
    limit = 16 * MIB
    stores = [FileStore(tmp_path, limit) for _ in range(3)]
    body = {key: os.urandom(40) * 2500 for key in names(600)}
    wrong: list[str] = []
    hits = refused = 0
    done = threading.Event()

    def write(store: FileStore, keys: list[str]) -> None:
        nonlocal refused
        for key in keys:
            while True:
                try:
                    store.put(key, [body[key]], soon())
                    break
                except StoreFault as fault:
                    expect(fault, Reason.FULL, Reason.BUSY)
                    refused += 1
                    time.sleep(0.005)

    def look(store: FileStore) -> None:
        nonlocal hits
        while not done.is_set():
            for key in names(600):
                try:
                    if read(store, key) != body[key]:
                        wrong.append(key)
                    hits += 1
                except StoreFault as fault:
                    expect(fault, Reason.ABSENT)

    writers = [threading.Thread(target=write, args=(stores[index % 3], names(100, index * 100))) for index in range(6)]
    readers = [threading.Thread(target=look, args=(stores[index],)) for index in range(2)]
    peak = 0
    for thread in [*writers, *readers]:
        thread.start()
    while any(thread.is_alive() for thread in writers):
        peak = max(peak, sum(_size(path) for path in files(tmp_path)))
    done.set()
    for thread in [*writers, *readers]:
        thread.join()
    for store in stores:
        store.close()
    assert not wrong
    assert hits
    assert peak <= limit, f"{peak / limit:.2f} of the bound"
    assert len(files(tmp_path)) >= 60


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
