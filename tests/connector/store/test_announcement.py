"""People find out what a namespace is for: also after it was evicted or purged, and where nothing is looked up."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.connector.store.test_namespace import BASE

from kvserving_connector.store import announcement
from kvserving_connector.store.announcement import Announcement
from kvserving_connector.store.client import Reason, StoreFault
from kvserving_connector.store.filesystem import FileStore
from kvserving_connector.store.inventory import holdings, purge

FAR = 1e12


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def told(store: FileStore) -> list[str]:
    return [str((holding.about or {}).get("model")) for holding in holdings(store, FAR)]


def test_what_a_namespace_is_for_is_written_again_after_a_while(tmp_path: Path) -> None:
    store, clock = FileStore(tmp_path / "l2"), Clock()
    it = Announcement(store, lambda: dataclasses.replace(BASE, model="org/model"), clock)
    it.tell()
    assert told(store) == ["org/model"]
    purge(store, BASE_NAME := holdings(store, FAR)[0].namespace, FAR)
    it.tell()
    assert told(store) == []
    clock.now += announcement.AGAIN_SECONDS
    it.tell()
    assert told(store) == ["org/model"]
    assert holdings(store, FAR)[0].namespace == BASE_NAME
    store.close()


def test_a_store_that_was_full_is_told_soon_after_it_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock = FileStore(tmp_path / "l2"), Clock()
    it = Announcement(store, lambda: dataclasses.replace(BASE, model="org/model"), clock)
    with monkeypatch.context() as full:
        full.setattr(store, "put", refuse)
        it.tell()
        clock.now += announcement.REFUSED_SECONDS
        it.tell()
    it.tell()
    assert told(store) == []
    clock.now += announcement.REFUSED_SECONDS
    it.tell()
    assert told(store) == ["org/model"]
    store.close()


def refuse(*_: object) -> bool:
    raise StoreFault(Reason.DISK_FULL)


def test_a_store_that_cannot_be_told_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "l2").write_text("no folder")
    store = FileStore(tmp_path / "l2")
    Announcement(store, lambda: BASE).tell()
    assert (tmp_path / "l2").read_text() == "no folder"
    store.close()
