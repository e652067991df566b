from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from kvserving_connector.store.address import Address, Credentials, folder
from kvserving_connector.store.client import StoreClient
from kvserving_connector.store.filesystem import FileStore
from kvserving_connector.store.open import open_store
from kvserving_connector.store.routing import Rendezvous, slot
from kvserving_connector.store.valkey import ValkeyStore, server_address

KEYS = [f"kv1-{index:032x}-{os.urandom(36).hex()}" for index in range(3000)]
SHARDS = [f"store-{index}.store.ns.svc:6379" for index in range(4)]


def test_shards_get_equal_shares() -> None:
    counts = Counter(Rendezvous(SHARDS).owner(key) for key in KEYS)
    assert all(600 < counts[index] < 900 for index in range(4)), counts


def test_a_shard_more_moves_only_what_it_takes_and_order_does_not_matter() -> None:
    before = {key: SHARDS[Rendezvous(SHARDS).owner(key)] for key in KEYS[:500]}
    more = ["store-4.store.ns.svc:6379", *reversed(SHARDS)]
    after = {key: more[Rendezvous(more).owner(key)] for key in KEYS[:500]}
    moved = {key for key in before if before[key] != after[key]}
    assert all(after[key] == more[0] for key in moved)
    assert 60 < len(moved) < 150


def test_slots_are_those_of_the_cluster_specification() -> None:
    assert slot("123456789") == 0x31C3
    assert slot("foo") == 12182


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://store:6380", Address("store", 6380)),
        ("valkey://store", Address("store", 6379)),
        ("rediss://10.0.0.1:1/", Address("10.0.0.1", 1, tls=True)),
        ("valkeys://[::1]:7/0", Address("::1", 7, tls=True)),
    ],
)
def test_addresses(url: str, address: Address) -> None:
    assert server_address(url) == address


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://store:80", "schemes"),
        ("redis://", "names no host"),
        ("redis://store:http", "port"),
        ("redis://store:0", "port"),
        ("redis://store:70000", "port"),
        ("redis://[::1", "brackets"),
        ("redis://store:6379/3", "database"),
        ("store:6379", "schemes"),
    ],
)
def test_wrong_addresses_name_field_and_way_out(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=rf"^urls: .*{words}"):
        open_store([url], None, Credentials())


def test_a_password_in_an_address_is_refused_without_showing_it() -> None:
    with pytest.raises(ValueError, match="KVSERVING_STORE_PASSWORD_FILE") as caught:
        server_address("redis://user:hunter2@store:6379")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://[::1", "urls: 'redis://[::1' has brackets or letters that no host name has; write redis://host:6379"),
        ("file://[a/b", "urls: 'file://[a/b' has brackets or letters that no host name has; write redis://host:6379"),
        ("redis://a:hunter2@[::1", "urls: 'redis://***@[::1' has brackets"),
        ("redis://user:hunter2/0", "urls: 'redis://user:***/0' has a port that is no number from 1 to 65535; write r"),
        ("redis://store:6379/5?password=hunter2", "urls: 'redis://store:6379/5?***' names database '/5'"),
        ("redis://store:hunter2@@[", "urls: 'redis://***@[' has brackets"),
        ("http://store?auth=hunter2", "urls: 'http://store?***' has none of the schemes redis, "),
        ("file://store/kv?key=hunter2", "urls: 'file://store/kv?***' must be file:// and an absolute path below /"),
    ],
)
def test_what_is_no_address_is_told_without_its_secrets(url: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared
        open_store([url], None, Credentials())
    assert str(caught.value).startswith(said)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["file://", "file:///", "file:////", "file://host/path", "file:relative"])
def test_directories_must_be_absolute(url: str) -> None:
    with pytest.raises(ValueError, match=r"^urls: .* must be file:// and .* below /, such as file:///var/lib/kv$"):
        folder(url, "file:///var/lib/kv")


def test_credentials_come_from_a_file_before_the_variable(tmp_path: object) -> None:
    path = os.path.join(str(tmp_path), "password")
    with open(path, "w") as file:
        file.write("secret\n")
    given = Credentials.from_environment({"KVSERVING_STORE_PASSWORD_FILE": path, "KVSERVING_STORE_PASSWORD": "other"})
    assert given.password() == "secret"
    assert Credentials.from_environment({"KVSERVING_STORE_PASSWORD": "other"}).password() == "other"
    assert Credentials.from_environment({}).password() == ""
    assert "other" not in repr(Credentials.from_environment({"KVSERVING_STORE_PASSWORD": "other"}))


def test_a_password_ends_before_its_line_end_wherever_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "password"
    for end in ("\n", "\r\n", "\n\n"):
        file.write_text(f"a word {end}", newline="")
        assert Credentials(password_file=str(file)).password() == "a word "
        assert Credentials.from_environment({"KVSERVING_STORE_PASSWORD": f"a word {end}"}).password() == "a word "


@pytest.mark.parametrize(
    ("urls", "kind"),
    [(["file:///var/lib/kv"], FileStore), (["redis://a:1", "redis://b:1"], ValkeyStore)],
)
def test_addresses_choose_the_client(urls: list[str], kind: type[StoreClient]) -> None:
    client = open_store(urls, None, Credentials())
    assert isinstance(client, kind)
    client.close()


@pytest.mark.parametrize(
    ("urls", "max_bytes", "words"),
    [
        ([], None, "^urls: "),
        (["file:///a", "file:///b"], None, "^urls: "),
        (["file:///a", "redis://b"], None, "^urls: "),
        (["file:///a"], 0, "^max_bytes: "),
    ],
)
def test_wrong_settings_name_the_field(urls: list[str], max_bytes: int | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        open_store(urls, max_bytes, Credentials())
