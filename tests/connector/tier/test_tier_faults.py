"""What a store does wrong, or not at all: each case ends in a miss or a skip."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.connector.store.servers import Server
from tests.connector.tier.tier_engine import Engine, chunks, engine, files, hold, keys, offloading_config, stored
from vllm.v1.kv_offload.base import LookupResult

from kvserving_connector.store.client import Reason, StoreFault
from kvserving_connector.store.filesystem import FileStore
from kvserving_connector.vllm import prober
from kvserving_connector.vllm import tier as tier_module

Start = Callable[..., Server]


def test_spoiled_objects_are_misses_and_are_written_again(tmp_path: Path) -> None:
    url, data = f"file://{tmp_path}/l2", chunks(6)
    with engine(url) as first:
        first.store(data)
    paths = files(tmp_path)
    os.truncate(paths[0], 100)
    flipped = bytearray(paths[1].read_bytes())
    flipped[-5] ^= 1
    paths[1].write_bytes(flipped)
    paths[2].write_bytes(paths[3].read_bytes())
    good = {path.name.rsplit("-")[-1] for path in paths[3:]}
    with engine(url) as second:
        assert second.load(list(data)) == {key: body for key, body in data.items() if bytes(key).hex() in good}
        for reason in ("truncated", "checksum", "key"):
            assert second.count("misses", reason) == 1
        # What failed is a miss without asking, until it is written again.
        failed = [key for key in data if bytes(key).hex() not in good]
        assert second.load(failed) == {}
        assert second.count("misses", "remembered") >= 3
    with engine(url) as third:
        third.store({key: data[key] for key in failed})
        assert third.count("written_chunks") == 3
    with engine(url) as fourth:
        assert fourth.load(list(data)) == data


def test_what_was_written_again_is_no_longer_remembered_as_failed(tmp_path: Path) -> None:
    url, data = f"file://{tmp_path}/l2", chunks(1)
    with engine(url, chunks=4) as it:
        it.store(data)
        os.truncate(files(tmp_path)[0], 0)
        it.store(chunks(2))
        it.store(chunks(2))
        assert it.load(list(data)) == {}
        it.store(data)
        it.store(chunks(2))
        it.store(chunks(2))
        assert it.load(list(data)) == data


def test_an_object_deleted_between_look_up_and_read_is_a_miss(tmp_path: Path) -> None:
    url, data = f"file://{tmp_path}/l2", chunks(2)
    with engine(url) as first:
        first.store(data)
    with engine(url) as second:
        context = second.request()
        wanted = list(data)
        second.until(lambda: second.manager.lookup(wanted[0], context) is LookupResult.HIT_PENDING)
        for path in files(tmp_path):
            path.unlink()
        second.until(lambda: second.manager.lookup(wanted[0], context) is LookupResult.MISS)
        second.step()
        assert second.count("misses", "absent") == 1
        second.manager.on_request_finished(context)


@pytest.mark.parametrize("fault", ["killed", "hung", "wrong password", "refused"])
def test_a_server_that_does_not_serve_is_a_miss_and_a_skip_and_holds_nobody_up(start_server: Start, fault: str) -> None:
    data = chunks(4)
    server = start_server(password="secret" if fault == "wrong password" else "")
    if fault != "wrong password":
        with engine(server.url) as first:
            first.store(data)
    with engine(server.url) as second:
        if fault == "hung":
            server.hang()
        elif fault != "wrong password":
            server.kill()
        began = time.monotonic()
        assert second.load(list(data)) == {}
        second.store(chunks(4))
        assert time.monotonic() - began < 2 * prober.PROBE_SECONDS + 10
        began = time.monotonic()
        for _ in range(10):
            assert second.load(keys(4)) == {}
            second.store(chunks(2))
        # Half of what it takes where each look-up waits.
        assert time.monotonic() - began < 5 * prober.PROBE_SECONDS
        reason = {"hung": "timeout", "wrong password": "denied"}.get(fault, "unreachable")
        assert second.count("misses", reason) > 0
        assert second.count("skipped_chunks", reason) > 0


def test_a_server_that_comes_back_empty_serves_again(start_server: Start) -> None:
    server, data = start_server(), chunks(4)
    with engine(server.url, chunks=8) as it:
        it.store(data)
        server.kill()
        it.store(chunks(8))
        assert it.load(list(data)) == {}
        server.start()
        it.until(lambda: stored(it, 4).count("written_chunks") >= 8)


def test_a_full_server_skips_is_told_once_and_serves_what_it_has(
    start_server: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "vllm.kvserving")
    server = start_server("--maxmemory", "2mb", "--maxmemory-policy", "noeviction")
    with engine(server.url) as it:
        data = chunks(4)
        it.store(data)
        it.until(lambda: stored(it, 16).count("skipped_chunks", "full") > 3)
    told = [record.getMessage() for record in caplog.records if "could not be written" in record.getMessage()]
    assert len(told) == 1, told
    assert "full: OOM" in told[0]
    with engine(server.url) as again:
        assert again.load(list(data)) == data


def test_a_read_only_server_skips(start_server: Start) -> None:
    first = start_server()
    replica = start_server("--replicaof", "127.0.0.1", str(first.port))
    with engine(replica.url) as it:
        it.store(chunks(4))
        assert it.count("skipped_chunks", "read-only") == 4


def test_a_directory_that_cannot_be_written_skips(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with engine(f"file://{tmp_path}/file/l2") as it:
        it.store(chunks(4))
        assert it.load(keys(2)) == {}
        assert it.count("skipped_chunks", "denied") == 4
        assert it.count("misses", "denied") == 2


def test_a_load_that_outlives_its_deadline_is_a_miss_and_writes_nothing_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, data = f"file://{tmp_path}/l2", chunks(4)
    with engine(url) as first:
        first.store(data)
    release = hold(monkeypatch, "get")
    with engine(url, load_timeout_s=0.3, chunks=4) as second:
        began = time.monotonic()
        assert second.load(list(data)) == {}
        assert 0.3 < time.monotonic() - began < 10
        assert second.count("timeouts", "load") == 1
        assert second.count("misses", "timeout") == 4
        # While it may still hang, nobody else waits for it.
        before = second.count("misses", "paused")
        assert second.load(keys(3)) == {}
        assert second.count("misses", "paused") == before + 3
        mine = chunks(4)
        second.store(mine)
        release.set()
        time.sleep(0.2)
        assert second.load(list(mine)) == mine
        second.store(chunks(1))
        second.until(lambda: second.load(list(data)) == data, 3)


def test_a_look_up_that_hangs_is_a_miss_and_its_late_answer_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prober, "PROBE_SECONDS", 0.2)
    url, data = f"file://{tmp_path}/l2", chunks(2)
    with engine(url) as first:
        first.store(data)
    release = hold(monkeypatch, "exists")
    with engine(url) as second:
        context = second.request()
        wanted = next(iter(data))
        second.until(lambda: second.manager.lookup(wanted, context) is LookupResult.MISS, 2)
        second.step()
        assert second.count("timeouts", "lookup") == 1
        release.set()
        time.sleep(0.1)
        for _ in range(5):
            second.step()
            assert second.manager.lookup(wanted, context) is LookupResult.MISS
        second.manager.on_request_finished(context)
        other = list(data)[1]
        second.until(lambda: second.load([other]) == {other: data[other]}, 2 * tier_module._FIRST_PAUSE)
        # The store answers, so that what it did not answer in time is asked for again.
        assert second.load([wanted]) == {wanted: data[wanted]}


def test_stores_never_pin_more_than_half_of_host_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = hold(monkeypatch, "put")
    with engine(f"file://{tmp_path}/l2", chunks=16) as it:
        context = it.request()
        data = keys(12)
        it.manager.prepare_store(data, context)
        it.manager.complete_store(data, context)
        assert it.tier._transfers.pending(load=False) == 8
        release.set()
        it.until(lambda: not it.manager.has_pending_work())
        assert it.count("skipped_chunks", "busy") == 4
        assert it.count("written_chunks") == 8
        it.manager.on_request_finished(context)


def test_look_ups_are_misses_while_enough_is_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, data = f"file://{tmp_path}/l2", chunks(4)
    with engine(url) as first:
        first.store(data)
    release = hold(monkeypatch, "get")
    with engine(url, max_inflight=4) as second:
        context = second.request()

        def pending() -> bool:
            # Every key is looked up in every step, as for a request in the waiting queue.
            results = [second.manager.lookup(key, context) for key in data]
            return results == [LookupResult.HIT_PENDING] * 4

        second.until(pending)
        second.step()
        assert second.tier._transfers.pending(load=True) == 4
        assert second.manager.lookup(keys(1)[0], context) is LookupResult.MISS
        release.set()
        second.until(lambda: second.tier._transfers.pending(load=True) == 0)
        second.manager.on_request_finished(context)
        assert second.count("misses", "busy") == 1


def test_shutting_down_with_a_hung_store_ends_soon_and_frees_host_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prober, "PROBE_SECONDS", 0.2)
    release = hold(monkeypatch, "put")
    it = Engine(offloading_config(f"file://{tmp_path}/l2"))
    context = it.request()
    data = keys(4)
    it.manager.prepare_store(data, context)
    it.manager.complete_store(data, context)
    began = time.monotonic()
    it.close()
    assert time.monotonic() - began < 20
    release.set()


def test_an_unlimited_stream_of_failures_takes_bounded_memory(tmp_path: Path) -> None:
    with engine(f"file://{tmp_path}/l2") as it:
        for _ in range(30):
            it.load(keys(50))
        assert not it.tier._probing
        assert not it.tier._lookup_manager._lookup_state


def test_faults_never_leave_the_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method of the client fails in every way it may; vLLM sees misses and failed jobs only."""
    data = chunks(2)
    for reason in Reason:

        def fail(self: FileStore, *arguments: Any, reason: Reason = reason) -> Any:
            raise StoreFault(reason)

        def unknown(self: FileStore, names: Any, deadline: float, reason: Reason = reason) -> Any:
            return [reason] * len(names)

        with monkeypatch.context() as patched:
            patched.setattr(FileStore, "get", fail)
            patched.setattr(FileStore, "put", fail)
            patched.setattr(FileStore, "delete", fail)
            with engine(f"file://{tmp_path}/{reason}") as it:
                it.store(data)
                patched.setattr(FileStore, "exists", lambda self, names, deadline: [True] * len(names))
                assert it.load(keys(2)) == {}
                assert it.count("misses", str(reason)) >= 2
                patched.setattr(FileStore, "exists", unknown)
                assert it.load(keys(2)) == {}
