"""What a store promises (see StoreClient) while its folder is broken or full and while other engines are in its way.

Asked of every kind that an address can name, what concerns a folder of those that lie in one.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from tests.connector.store.servers import address_of, outcome, soon, wait_for, within
from tests.connector.store.test_contract import BODY, BOUNDED, KEY, KEYS, OTHER, read

from kvserving_connector.store.address import Credentials
from kvserving_connector.store.client import Reason
from kvserving_connector.store.framing import object_name
from kvserving_connector.store.inventory import ListedStore
from kvserving_connector.store.open import KINDS, Kind, open_store

FOLDERS = [kind for kind in KINDS if kind.folder]
LONG = 4 * 2**20
NOBODY = 65534


def opened(url: str, limit: int = 2**30) -> ListedStore:
    return open_store([url], limit, Credentials())


def asked(store: ListedStore, seconds: float = 10.0) -> dict[str, object]:
    """Ask for everything, and return what was answered, a Reason for what was not served.

    What is not served is told as it is promised, and no later than ``seconds`` and a little.
    """
    buffer = memoryview(bytearray(LONG))
    operations: dict[str, Callable[[float], object]] = {
        "exists": partial(store.exists, [KEY, OTHER]),
        "get": partial(store.get, KEY, buffer),
        "put": partial(store.put, OTHER, [BODY]),
        "put again": partial(store.put, KEY, [BODY]),
        "delete": partial(store.delete, OTHER),
        "usage": store.usage,
        "listing": lambda deadline: list(store.listing("", deadline)),
    }
    # Only StoreFault becomes a reason: whatever else is raised fails the test.
    found = {
        name: within(partial(outcome, lambda operation=operation: operation(soon(seconds))), seconds, name)  # type: ignore[misc]
        for name, operation in operations.items()
    }
    exists = found["exists"]
    assert isinstance(exists, list)
    assert [type(each) in (bool, Reason) for each in exists] == [True, True]
    return found


def told(store: ListedStore, seconds: float) -> set[bytes | Reason]:
    """What a reader that looks for an object learns: its bytes, and why anything was not served."""
    answers: list[object] = [*store.exists([KEY], soon(seconds)), outcome(lambda: read(store, seconds=seconds))]
    answers.append(outcome(lambda: store.usage(soon(seconds))))
    answers.append(outcome(lambda: list(store.listing("", soon(seconds)))))
    return {answer for answer in answers if isinstance(answer, bytes | Reason)}


@contextmanager
def removed(folder: Path) -> Iterator[None]:
    if folder.exists():
        folder.rename(folder.with_name("gone"))
    yield


@contextmanager
def a_file_in_its_place(folder: Path) -> Iterator[None]:
    with removed(folder):
        folder.write_bytes(b"no folder")
        yield
        folder.unlink()


@contextmanager
def a_file_above(folder: Path) -> Iterator[None]:
    with a_file_in_its_place(folder.parent):
        yield


@contextmanager
def links_in_a_circle(folder: Path) -> Iterator[None]:
    with removed(folder):
        folder.symlink_to(folder)
        yield
        folder.unlink()


def files_of(place: Path) -> list[Path]:
    """Return the files of a store that lies at ``place``: the place itself, or all below it."""
    return [path for path in (place, *place.rglob("*")) if path.is_file()]


@contextmanager
def files_of_junk(folder: Path) -> Iterator[None]:
    for path in files_of(folder):
        path.write_bytes(os.urandom(8192))
    yield


@contextmanager
def flipped_bits(folder: Path) -> Iterator[None]:
    chance = random.Random(7)
    for path in files_of(folder):
        body = bytearray(path.read_bytes())
        for at in chance.sample(range(len(body)), min(len(body), 64)):
            body[at] ^= 1 << chance.randrange(8)
        path.write_bytes(body)
    yield


@contextmanager
def folders_for_files(folder: Path) -> Iterator[None]:
    for path in files_of(folder):
        path.unlink()
        path.mkdir()
    yield


@contextmanager
def forbidden(folder: Path) -> Iterator[None]:
    if folder.exists():
        folder.chmod(0)
    else:
        folder.parent.mkdir(exist_ok=True)
        folder.parent.chmod(0)
    # To root nothing is forbidden.
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.parent.chmod(0o700)
        if folder.exists():
            folder.chmod(0o700)


@contextmanager
def no_room(_folder: Path) -> Iterator[None]:
    """No file may grow beyond some KiB, which a write learns in its middle, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 * 1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


BREAKAGES = [
    *(removed, a_file_in_its_place, a_file_above, links_in_a_circle, files_of_junk, flipped_bits, folders_for_files),
    *(forbidden, no_room),
]


@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.__name__)
@pytest.mark.parametrize("kind", FOLDERS, ids=lambda kind: kind.example)
def test_a_folder_that_is_broken_costs_misses_and_skips_and_nothing_else_is_raised(
    kind: Kind,
    breakage: Callable[[Path], object],
    used: bool,
    servers: ExitStack,
    tmp_path: Path,
) -> None:
    above = tmp_path / "above"
    above.mkdir()
    url = address_of(kind, servers, above)
    store = opened(url)
    if used:
        assert store.put(KEY, [BODY], soon())
        assert files_of(above / "l2"), "nothing of this store would be broken"
    with breakage(above / "l2"):  # type: ignore[attr-defined]
        asked(store)
        # One that is opened only now.
        other = opened(url)
        asked(other)
        other.close()
    store.close()


@pytest.mark.parametrize("kind", FOLDERS, ids=lambda kind: kind.example)
def test_a_folder_without_room_holds_no_half_object_and_serves_again_once_there_is_room(
    kind: Kind, servers: ExitStack, tmp_path: Path
) -> None:
    store = opened(address_of(kind, servers, tmp_path))
    store.put(KEY, [BODY], soon())
    with no_room(tmp_path):
        written = outcome(lambda: store.put(OTHER, [bytes(LONG)], soon()))
        assert store.exists([OTHER], soon()) == [written is True]
        # A store that meets a full disk may evict what it has.
        assert outcome(lambda: read(store)) in (BODY, Reason.ABSENT)
    wait_for(lambda: isinstance(outcome(lambda: store.put(OTHER, [BODY], soon())), bool))
    assert store.exists([OTHER], soon()) == [True]
    store.close()


@pytest.mark.parametrize("kind", FOLDERS, ids=lambda kind: kind.example)
def test_a_folder_that_was_removed_is_made_again(kind: Kind, servers: ExitStack, tmp_path: Path) -> None:
    url = address_of(kind, servers, tmp_path)
    store = opened(url)
    store.put(KEY, [BODY], soon())
    (tmp_path / "l2").rename(tmp_path / "gone")
    wait_for(lambda: outcome(lambda: store.put(KEY, [BODY], soon())) is True)
    later = opened(url)
    assert read(store) == read(later) == BODY
    later.close()
    store.close()


@pytest.mark.parametrize("kind", BOUNDED, ids=lambda kind: kind.example)
def test_what_was_read_or_put_again_is_evicted_after_what_was_not(
    kind: Kind, servers: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(address_of(kind, servers, tmp_path), 40 * len(BODY))

    def put(key: str) -> bool:
        return outcome(lambda: store.put(key, [BODY], soon())) is True

    for key in KEYS[:30]:
        wait_for(partial(put, key))
    _an_hour_passes(tmp_path / "l2", monkeypatch)
    assert read(store, KEYS[0]) == BODY
    assert store.put(KEYS[1], [BODY], soon()) is False
    for key in KEYS[30:60]:
        wait_for(partial(put, key))
    assert store.exists(KEYS[:2], soon()) == [True, True]
    assert False in store.exists(KEYS[2:30], soon())
    store.close()


def _an_hour_passes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For stores that note a use by the clock, and for those that note it by a file's times."""
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 3600)
    for path in folder.rglob("*"):
        # A store may remove what it no longer needs at any time.
        with suppress(FileNotFoundError):
            status = path.stat()
            os.utime(path, (status.st_atime - 3600, status.st_mtime - 3600))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.example)
def test_who_reads_while_the_first_put_makes_the_store_is_told_of_nothing_but_absence(
    kind: Kind, servers: ExitStack, tmp_path: Path
) -> None:
    found: set[bytes | Reason] = set()
    for number in range(5 if kind.folder else 1):
        (tmp_path / str(number)).mkdir()
        url = address_of(kind, servers, tmp_path / str(number))
        writer, *readers = [opened(url) for _ in range(4)]
        looked, made = threading.Semaphore(0), threading.Event()

        def look(store: ListedStore, looked: threading.Semaphore = looked, made: threading.Event = made) -> None:
            while not made.is_set():
                found.update(told(store, 60))
                looked.release()

        threads = [threading.Thread(target=look, args=(store,)) for store in readers]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert looked.acquire(timeout=60)
        writer.put(KEY, [BODY], soon(60))
        made.set()
        for thread in threads:
            thread.join()
        if kind.folder or kind.port is not None:
            assert all(read(store) == BODY for store in readers)
        for store in (writer, *readers):
            store.close()
    assert found <= {BODY, Reason.ABSENT}


MAKER = f"""
import itertools, sys, time
from kvserving_connector.store.address import Credentials
from kvserving_connector.store.open import open_store

for number in itertools.count():
    store = open_store([sys.argv[1].replace("NUMBER", str(number))], 2**30, Credentials())
    store.put("{KEY}", [b"made"], time.monotonic() + 600)
    store.close()
    if number == 3:
        print("making", flush=True)
"""


@pytest.mark.parametrize("kind", FOLDERS, ids=lambda kind: kind.example)
def test_a_folder_that_another_engine_has_half_made_is_empty_or_takes_too_long(
    kind: Kind, servers: ExitStack, tmp_path: Path
) -> None:
    url = address_of(kind, servers, tmp_path / "NUMBER")
    found: set[bytes | Reason] = set()
    with another_engine(MAKER, url) as stopped:
        for _ in range(60):
            with stopped():
                last = max(int(path.name) for path in tmp_path.iterdir())
                store = opened(url.replace("NUMBER", str(last)))
                found |= told(store, 0.05)
                store.close()
    assert found <= {b"made", Reason.ABSENT, Reason.TIMEOUT}


@contextmanager
def another_engine(script: str, url: str) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """A process that runs ``script``; yields what stops it somewhere in its work while a block runs."""
    choice = random.Random(5)
    process = subprocess.Popen([sys.executable, "-c", script, url], stdout=subprocess.PIPE)

    @contextmanager
    def stopped() -> Iterator[None]:
        # No event tells of the middle of a put.
        time.sleep(choice.uniform(0, 0.02))
        process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"the other engine ended: {status}"
        yield
        process.send_signal(signal.SIGCONT)

    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield stopped
    finally:
        process.kill()
        process.communicate()


WRITER = f"""
import os, sys, time
from kvserving_connector.store.address import Credentials
from kvserving_connector.store.client import Reason, StoreFault
from kvserving_connector.store.framing import object_name
from kvserving_connector.store.open import open_store

store, body, number = open_store([sys.argv[1]], 2**30, Credentials()), os.urandom({LONG}), 0
while True:
    key = object_name(b"w" * 32, (number % 10).to_bytes(8, "big"))
    try:
        store.delete(key, time.monotonic() + 60)
        store.put(key, [body], time.monotonic() + 60)
    except StoreFault as fault:
        if fault.reason not in (Reason.TIMEOUT, Reason.FULL, Reason.BUSY, Reason.DISK_FULL):
            raise
    number += 1
    if number == 3:
        print("writing", flush=True)
"""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.example)
def test_another_engine_that_stands_still_or_dies_in_a_put_costs_no_more_than_the_deadline(
    kind: Kind, servers: ExitStack, tmp_path: Path
) -> None:
    url = address_of(kind, servers, tmp_path)
    store = opened(url)
    store.put(KEY, [BODY], soon())
    with another_engine(WRITER, url) as stopped:
        for _ in range(8):
            with stopped():
                asked(store, seconds=0.2)
    wait_for(lambda: isinstance(outcome(lambda: store.put(OTHER, [BODY], soon())), bool))
    assert read(store, OTHER) == BODY
    for number in range(10):
        key = object_name(b"w" * 32, number.to_bytes(8, "big"))
        found = outcome(partial(read, store, key, room=LONG + 64))
        assert found is Reason.ABSENT or len(found) == LONG
    store.close()
