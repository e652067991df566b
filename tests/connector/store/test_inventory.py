from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.connector.store.servers import Server

from kvserving_connector.store import address
from kvserving_connector.store.address import Credentials
from kvserving_connector.store.client import StoreFault
from kvserving_connector.store.filesystem import FileStore
from kvserving_connector.store.framing import object_name
from kvserving_connector.store.inventory import ListedStore, about_key, holdings, purge
from kvserving_connector.store.open import KINDS
from kvserving_connector.store.valkey import ValkeyStore

Start = Callable[..., Server]
A, B = bytes(range(32)), bytes(range(32, 64))


def soon() -> float:
    return time.monotonic() + 20


@pytest.fixture(params=["valkey", "two shards", "files"])
def store(request: pytest.FixtureRequest, start_server: Start, tmp_path: Path) -> ListedStore:
    if request.param == "files":
        return FileStore(tmp_path / "store")
    number = 2 if request.param == "two shards" else 1
    return ValkeyStore([start_server().address for _ in range(number)], Credentials())


def fill(store: ListedStore) -> None:
    for namespace, number in ((A, 700), (B, 3)):
        for key in range(number):
            store.put(object_name(namespace, key.to_bytes(8, "big")), (b"x" * 100,), soon())
    store.put(about_key(A), (b'{"model": "m"}',), soon())


def test_namespaces_are_counted_and_told_by_what_they_are_for(store: ListedStore) -> None:
    fill(store)
    large, small = holdings(store, soon())
    assert (large.namespace, large.objects, large.bytes) == (A[:16].hex(), 700, 70_000)
    assert large.about == {"model": "m"}
    assert (small.namespace, small.objects, small.about) == (B[:16].hex(), 3, None)


def test_only_the_named_namespace_is_removed(store: ListedStore) -> None:
    fill(store)
    removed = purge(store, A[:16].hex(), soon())
    assert removed.objects == 700
    (left,) = holdings(store, soon())
    assert (left.namespace, left.objects) == (B[:16].hex(), 3)
    assert purge(store, A[:16].hex(), soon()).objects == 0


@pytest.mark.parametrize("name", ["", "*", "00", "G" * 32, "../" + "0" * 29])
def test_what_is_no_namespace_removes_nothing(store: ListedStore, name: str) -> None:
    fill(store)
    with pytest.raises(ValueError, match="32 hex digits"):
        purge(store, name, soon())
    assert sum(holding.objects for holding in holdings(store, soon())) == 703


def test_an_empty_store_has_no_namespace(store: ListedStore) -> None:
    assert holdings(store, soon()) == []


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvserving_connector.store", *arguments],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_command_answers_in_json_and_takes_the_password_from_the_environment(start_server: Start) -> None:
    server = start_server(password="a-password")
    url = f"--url={server.url}"
    store = ValkeyStore([server.address], server.credentials)
    fill(store)
    done = command("usage", url, KVSERVING_STORE_PASSWORD="a-password")
    found = json.loads(done.stdout)
    assert [entry["objects"] for entry in found["namespaces"]] == [700, 3]
    assert found["used_bytes"] > 0
    done = command("purge", url, f"--namespace={B[:16].hex()}", KVSERVING_STORE_PASSWORD="a-password")
    assert json.loads(done.stdout)["objects"] == 3
    refused = command("usage", url, KVSERVING_STORE_PASSWORD="another")
    assert refused.returncode == 1
    assert "denied" in refused.stderr
    assert "another" not in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_command_s_help_names_every_variable_and_every_bounded_kind() -> None:
    answer = command("--help", COLUMNS="300")
    assert answer.returncode == 0
    variables = {
        value for name, value in vars(address).items() if name.isupper() and str(value).startswith("KVSERVING_")
    }
    assert len(variables) == 5
    for variable in variables:
        assert re.search(rf"^  {variable} ", answer.stdout, re.MULTILINE), variable
    for kind in KINDS:
        assert kind.example in answer.stdout
        assert not kind.bounded or f"{kind.schemes[0]}://" in answer.stdout.partition("--max-bytes MAX_BYTES")[2]


def test_keys_of_another_type_and_names_that_are_none_of_ours_hide_nothing(start_server: Start) -> None:
    server = start_server()
    store = ValkeyStore([server.address], Credentials())
    name = A[:16].hex().encode()
    server.command(b"SET", b"kv1-%b-0" % name, b"x" * 100)
    server.command(b"SET", b"kv1-%b-\xff" % name, b"x")
    server.command(b"SET", b"kv1-" + b"\x1b" * 32 + b"-0", b"x")
    server.command(b"LPUSH", b"kv1-%b-1" % name, b"x")
    server.command(b"LPUSH", b"kv1-%b-about" % name, b"x")
    (found,) = holdings(store, soon())
    assert (found.namespace, found.objects, found.bytes, found.about) == (name.decode(), 2, 100, None)
    assert purge(store, name.decode(), soon()).objects == 2
    assert server.command(b"DBSIZE") == 2
    assert holdings(store, soon()) == []


def test_a_refusal_among_sizes_is_told_and_the_next_answer_is_right(start_server: Start) -> None:
    server = start_server()
    server.command(b"SET", b"kv1-0-0", b"x")
    server.command(b"SET", b"kv1-0-1", b"x")
    server.command(b"ACL", b"SETUSER", b"default", b"-strlen")
    store = ValkeyStore([server.address], Credentials())
    with pytest.raises(StoreFault, match="NOPERM"):
        list(store.listing("kv1-", soon()))
    server.command(b"ACL", b"SETUSER", b"default", b"+strlen")
    deadline = soon()
    while store.exists(["kv1-0-2", "kv1-0-0"], soon()) != [False, True]:
        assert time.monotonic() < deadline


@pytest.mark.parametrize("text", [b"[" * 9000, b'{"model": ' * 12 + b"1" + b"}" * 12, b"[1]"])
def test_what_is_no_description_is_unknown(start_server: Start, text: bytes) -> None:
    server = start_server()
    server.command(b"SET", about_key(A).encode(), text)
    (found,) = holdings(ValkeyStore([server.address], Credentials()), soon())
    assert found.about is None
