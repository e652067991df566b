"""What a store promises of its addresses, and of its lines in the lists of kinds, asked of every kind."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch
from urllib.parse import parse_qsl, urlsplit

import pytest
from tests.connector.store.addresses import addresses
from tests.connector.store.servers import address_of

from kvserving_connector import store
from kvserving_connector.store import open as stores
from kvserving_connector.store.address import Address, Credentials, bound, check
from kvserving_connector.store.inventory import ListedStore
from kvserving_connector.store.open import KINDS, Kind, open_store
from kvserving_connector.store.valkey import ValkeyStore
from kvserving_operator.api.stores import EXTERNAL, External

OPERATORS_LIST = (
    "KINDS in connector/src/kvserving_connector/store/open.py and EXTERNAL in "
    "operator/src/kvserving_operator/api/stores.py differ: a store has its line in both, or objects cannot name it, "
    "with the same example, port=, folder=, bounded=, databases=, paths= and parameters=, or an object is refused "
    "whose address engines take, or network policies open no way to it"
)


def test_every_store_of_the_package_has_its_line() -> None:
    modules = [
        importlib.import_module(f"{store.__name__}.{each.name}") for each in pkgutil.iter_modules(store.__path__)
    ]
    makers = {
        f"{module.__name__}.{name}"
        for module in modules
        for name, each in vars(module).items()
        if name.startswith("open_") and module is not stores and getattr(each, "__module__", "") == module.__name__
    }
    assert makers == {f"{kind.open.__module__}.{kind.open.__name__}" for kind in KINDS}, OPERATORS_LIST


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.bounded], ids=lambda kind: kind.example)
@pytest.mark.parametrize("bound", ["5Gi", "0", "-1", "", "1.5", "1&bytes=x", "\u0665", "9" * 19])
def test_a_bound_that_is_no_number_of_bytes_is_refused_with_the_way_out(kind: Kind, bound: str) -> None:
    with pytest.raises(
        ValueError, match=r"^urls: .*\?\*\*\*' has \?bytes= with what is no .*; write .*\?bytes=5000000$"
    ):
        open_store([f"{kind.example}?bytes={bound}"], None, Credentials())


def _wrong(kind: Kind) -> list[str]:
    """Addresses that no store of a kind is at: of no server, of no folder."""
    scheme = kind.schemes[0]
    if kind.folder:
        return [f"{scheme}://", f"{scheme}:///", f"{scheme}://name/path", f"{scheme}://[name/path"]
    written = ["", ":80", "/path", "host:0", "host:65536", "host:hunter2", "host:-1", "[::1"]
    return [f"{scheme}://{each}" for each in written]


@pytest.mark.parametrize(
    ("kind", "url"),
    [(kind, url) for kind in KINDS for url in _wrong(kind)],
    ids=lambda each: getattr(each, "example", each),
)
def test_a_wrong_address_is_refused_with_the_way_out(kind: Kind, url: str) -> None:
    with pytest.raises(ValueError, match=rf"^urls: .*{re.escape(kind.schemes[0])}://") as caught:
        open_store([url], None, Credentials())
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.example)
@pytest.mark.parametrize("more", ["/path", "/a/b", "?token=hunter2", "?db=1", "#hunter2", "/path?token=hunter2"])
def test_what_else_an_address_says_is_taken_as_its_line_says_or_refused_and_never_repeated(
    kind: Kind, more: str
) -> None:
    refusal = _refusal([kind.example + more])
    written = urlsplit(more)
    fits = (not written.path or kind.folder or kind.paths) and not written.fragment
    names = {name for name, _ in parse_qsl(written.query)}
    assert (refusal is None) == (fits and names <= set(kind.parameters)), refusal
    assert refusal is None or refusal.startswith("urls: ")
    assert "hunter2" not in (refusal or "")


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [(kind, scheme) for kind in KINDS for scheme in kind.schemes],
    ids=lambda each: getattr(each, "example", each),
)
def test_an_address_is_opened_when_its_line_allows_it_and_no_other(kind: Kind, scheme: str) -> None:
    for url in addresses(scheme):
        try:
            check(url, kind)
            bound(url, kind.example)
            refused = False
        except ValueError:
            refused = True
        told = f"{kind.example}: its line of KINDS allows {url!r}, and its open refuses it: say there what it takes"
        assert (_refusal([url]) is not None) == refused, told


@pytest.mark.parametrize("url", ["REDIS://store", "redis:store", "redis:/store", "store:6379", "xredis://store"])
def test_an_address_begins_with_a_scheme_as_it_is_written_in_the_list(url: str) -> None:
    assert "none of the schemes" in (_refusal([url]) or "")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.example)
def test_several_addresses_are_one_store_or_refused(kind: Kind) -> None:
    refusal = _refusal([kind.example, kind.example])
    assert refusal is None or refusal.startswith("urls: ")


def _refusal(urls: list[str]) -> str | None:
    """Why ``urls`` are refused; None where they are not."""
    try:
        open_store(urls, None, Credentials()).close()
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.example)
def test_an_address_with_a_password_is_refused_without_showing_it(kind: Kind) -> None:
    url = kind.example.replace("://", "://user:hunter2@", 1)
    with pytest.raises(ValueError, match=r"^urls: .*PASSWORD_FILE") as caught:
        open_store([url], None, Credentials())
    assert "hunter2" not in str(caught.value)


def test_a_kind_whose_example_is_a_path_is_not_opened_there(servers: ExitStack, tmp_path: Path) -> None:
    kind = dataclasses.replace(KINDS[-1], schemes=("other",), example="other:///path", folder=False, port=None)
    with pytest.raises(pytest.fail.Exception, match="other:///path is a path of this machine: give its line of KINDS"):
        address_of(kind, servers, tmp_path)


@pytest.mark.parametrize(
    ("example", "port", "told"),
    [
        ("other://host:8080", 8080, r'add the line "other": TheServer to SERVERS in tests/connector/store/servers\.py'),
        ("other://host:8080", None, "give its line of KINDS in .*open.py port="),
        ("other://host.invalid", None, "has neither port= nor folder=True"),
    ],
)
def test_a_kind_of_servers_that_no_test_can_start_says_which_line_is_missing(
    example: str, port: int | None, told: str, servers: ExitStack, tmp_path: Path
) -> None:
    kind = dataclasses.replace(KINDS[0], schemes=("other",), example=example, port=port, open=_at_no_server)
    with (
        patch.object(stores, "KINDS", (kind,)),
        pytest.raises(pytest.fail.Exception, match=told),
    ):
        address_of(kind, servers, tmp_path)


def _at_no_server(_urls: Sequence[str], _max_bytes: int | None, credentials: Credentials) -> ListedStore:
    return ValkeyStore([Address("127.0.0.1", 1)], credentials)


def test_examples_name_their_own_kind() -> None:
    for kind in KINDS:
        client = open_store([kind.example], None, Credentials())
        assert type(client) is type(kind.open([kind.example], None, Credentials()))
        client.close()


def test_an_object_can_name_every_kind_but_a_directory() -> None:
    assert set(EXTERNAL) | {"file"} == {scheme for kind in KINDS for scheme in kind.schemes}, OPERATORS_LIST


def test_both_tables_say_the_same_of_an_address() -> None:
    for kind in KINDS:
        for scheme in {*kind.schemes} & {*EXTERNAL}:
            # The first scheme of a kind is that of its example.
            example = f"{scheme}://{kind.example.partition('://')[2]}"
            said = {field.name: getattr(kind, field.name) for field in dataclasses.fields(External)}
            assert dataclasses.asdict(EXTERNAL[scheme]) == said | {"example": example}, OPERATORS_LIST


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.example)
def test_a_kind_lies_behind_a_port_or_in_a_folder_and_its_example_says_so(kind: Kind) -> None:
    written = urlsplit(kind.example)
    assert not (kind.folder and kind.port), "a kind has port= or folder=True, not both"
    assert written.port == kind.port, f"{kind.example}: its port and port= in the line of KINDS differ"
    assert written.scheme in kind.schemes
    for scheme in kind.schemes:
        # What else is in a scheme is not found in an address, where letters count as small ones.
        assert re.fullmatch("[a-z][a-z0-9+.-]*", scheme), f"{scheme!r} is no scheme: small letters, digits, + - ."


def test_an_unknown_scheme_is_answered_with_those_there_are_and_shows_no_password() -> None:
    with pytest.raises(ValueError, match=r"^urls: 'other://store:80' has none of the schemes redis, .*; write r"):
        open_store(["other://store:80"], None, Credentials())
    with pytest.raises(ValueError, match="PASSWORD_FILE") as caught:
        open_store(["other://user:hunter2@store:80"], None, Credentials())
    assert "hunter2" not in str(caught.value)
