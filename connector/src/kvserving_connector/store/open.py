"""From a tier's configuration to the client of its store.

A new kind of store is a module beside this one and its line in ``KINDS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvserving_connector.store.address import Credentials, bound, check, refuse_secrets, shown, split
from kvserving_connector.store.filesystem import open_folder
from kvserving_connector.store.inventory import ListedStore
from kvserving_connector.store.valkey import DEFAULT_PORT, EXAMPLE, SCHEMES, open_servers


@dataclass(frozen=True)
class Kind:
    """A kind of store: the schemes of its addresses, one address as an example, and what makes its client.

    ``open`` takes one address or more, of the form below and without user and password, the bound in bytes (None: the
    kind's own) and the credentials; it connects nothing, touches no file, and raises ValueError that begins with
    ``urls:`` for addresses that do not go together. The bound is the operator's, which gives one for type filesystem
    alone, or that of ``?bytes=`` in the address; a kind that is not ``bounded`` takes none of these: its servers bound
    themselves, and what the operator gives is left aside.

    The rest says what an address may have; what else it has is refused before ``open``. The addresses of a ``folder``
    are paths without a host, which the engines mount: its objects come from a disk. All others name a host. Those of
    servers mean ``port`` where they name none; a kind without needs nothing outside the engine's process. Behind the
    host stands nothing, the number of a database where the kind has ``databases`` (0 alone is used), or any path where
    it has ``paths``. ``parameters`` are those that it takes behind the ?, beside the ``bytes`` of a bounded one.

    The operator's table of the same, ``EXTERNAL`` in its ``api/stores.py``, refuses an object by the same rule.
    """

    schemes: tuple[str, ...]
    example: str
    open: Callable[[Sequence[str], int | None, Credentials], ListedStore]
    folder: bool = False
    port: int | None = None
    bounded: bool = False
    databases: bool = False
    paths: bool = False
    parameters: tuple[str, ...] = ()


KINDS = (
    Kind(SCHEMES, EXAMPLE, open_servers, port=DEFAULT_PORT, databases=True),
    Kind(("file",), "file:///path", open_folder, folder=True, bounded=True),
)


def open_store(urls: Sequence[str], max_bytes: int | None, credentials: Credentials) -> ListedStore:
    """Return the client for ``urls``, all of one kind of ``KINDS``.

    ``max_bytes`` bounds a store of a bounded kind, or else ``?bytes=`` in its address. Connects nothing and touches no
    file. Raises ValueError naming the field for addresses that cannot be understood or do not go together.
    """
    kind = kind_of(urls)
    if max_bytes is not None and max_bytes <= 0:
        way_out = f"leave it out for the bound that a {kind.schemes[0]}:// store has by itself"
        raise ValueError(f"max_bytes: {max_bytes} must be a number of bytes above 0; {way_out}")
    for url in urls:
        check(url, kind)
    bounds = [bound(url, kind.example) for url in urls]
    return kind.open(urls, max_bytes or bounds[0], credentials)


def kind_of(urls: Sequence[str]) -> Kind:
    """Return the kind of store that all of ``urls`` name. Raises ValueError where there is none."""
    if not urls:
        raise ValueError(f"urls: a store needs at least one address; write {examples()}")
    kind, *others = dict.fromkeys(map(_kind, urls))
    if others:
        schemes = " and ".join(each.schemes[0] for each in (kind, *others))
        raise ValueError(f"urls: {schemes} are different kinds of store; give addresses of one kind")
    return kind


def _kind(url: str) -> Kind:
    refuse_secrets(split(url, examples()))
    for kind in KINDS:
        # As written: elsewhere a scheme is found by its small letters alone.
        if url.partition("://")[0] in kind.schemes:
            return kind
    schemes = ", ".join(scheme for kind in KINDS for scheme in kind.schemes)
    raise ValueError(f"urls: {shown(url)} has none of the schemes {schemes}; write {examples()}")


def examples() -> str:
    """Return an address of each kind, for the way out of messages."""
    return " or ".join(kind.example for kind in KINDS)
