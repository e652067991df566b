"""From a tier's configuration to the client of its store."""

from __future__ import annotations

from collections.abc import Sequence

from kvserving_connector.store.address import Credentials, folder, server_address
from kvserving_connector.store.client import StoreClient
from kvserving_connector.store.filesystem import FileStore
from kvserving_connector.store.valkey import ValkeyStore


def open_store(urls: Sequence[str], max_bytes: int | None, credentials: Credentials) -> StoreClient:
    """Return the client for ``urls``: one ``file://`` directory, or one or several Valkey or Redis servers.

    ``max_bytes`` bounds a directory; servers bound themselves. Connects nothing and touches no file.
    Raises ValueError naming the field for addresses that cannot be understood or do not go together.
    """
    if not urls:
        raise ValueError("urls: a store needs at least one address; write redis://host:6379 or file:///path")
    if max_bytes is not None and max_bytes <= 0:
        raise ValueError(f"max_bytes: {max_bytes} must be a number of bytes above 0; leave it out for 85 % of the disk")
    if any(url.startswith("file:") for url in urls):
        if len(urls) > 1:
            raise ValueError("urls: a directory is a store of its own; give one file:// address alone")
        return FileStore(folder(urls[0]), max_bytes)
    return ValkeyStore([server_address(url) for url in urls], credentials)
