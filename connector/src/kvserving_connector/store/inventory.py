"""What a store holds, by namespace, and how one namespace is removed. For people: engines never list a store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvserving_connector.store.client import StoreClient, StoreFault
from kvserving_connector.store.framing import FORMAT_VERSION

PREFIX = f"kv{FORMAT_VERSION}-"
_DIGITS = 32
_ABOUT = "about"
_LONGEST_ABOUT = 64 * 1024
_DEEPEST_ABOUT = 8


class ListedStore(StoreClient, Protocol):
    """A store whose objects can be listed."""

    def listing(self, prefix: str, deadline: float) -> Iterator[Sequence[tuple[str, int]]]:
        """Yield (key, bytes) of every object whose key begins with ``prefix``, in batches.

        One that is written or removed meanwhile may be there or not, and may come twice. Raises StoreFault.
        """
        ...


@dataclass
class Holding:
    """Objects of one namespace (32 hex digits), their bytes, and what the engine that uses it said of it."""

    namespace: str
    objects: int = 0
    bytes: int = 0
    about: Mapping[str, Any] | None = None


def about_key(namespace: bytes) -> str:
    """Return the key under which engines say what a namespace (32-byte digest) is for."""
    return f"{PREFIX}{namespace[:16].hex()}-{_ABOUT}"


def holdings(store: ListedStore, deadline: float) -> list[Holding]:
    """Return the namespaces of a store, the largest first. Raises StoreFault."""
    found: dict[str, Holding] = {}
    seen: set[str] = set()
    for batch in store.listing(PREFIX, deadline):
        for key, size in batch:
            name = key[len(PREFIX) :].partition("-")[0]
            if not _is_namespace(name) or key in seen:
                continue
            seen.add(key)
            holding = found.setdefault(name, Holding(name))
            if key.endswith(f"-{_ABOUT}"):
                holding.about = _about(store, key, deadline)
            else:
                holding.objects += 1
                holding.bytes += size
    return sorted(found.values(), key=lambda holding: (-holding.bytes, holding.namespace))


def purge(store: ListedStore, namespace: str, deadline: float) -> Holding:
    """Remove every object of one namespace; return what was removed.

    Engines that use it go on, and store again what they compute. Raises ValueError for a name that is no namespace,
    and StoreFault; what was removed before stays removed.
    """
    if not _is_namespace(namespace):
        raise ValueError(f"--namespace {namespace!r}: a namespace has {_DIGITS} hex digits, as `usage` shows them")
    removed = Holding(namespace)
    for batch in store.listing(f"{PREFIX}{namespace}-", deadline):
        for key, size in batch:
            store.delete(key, deadline)
            removed.objects += not key.endswith(f"-{_ABOUT}")
            removed.bytes += size
    return removed


def _is_namespace(name: str) -> bool:
    return len(name) == _DIGITS and set(name) <= set("0123456789abcdef")


def _about(store: StoreClient, key: str, deadline: float) -> Mapping[str, Any] | None:
    buffer = memoryview(bytearray(_LONGEST_ABOUT))
    try:
        length = store.get(key, buffer, deadline)
        text = json.loads(bytes(buffer[:length]))
    except (StoreFault, ValueError, RecursionError):
        # Evicted between the listing and now, or written by something else: the numbers count.
        return None
    return text if isinstance(text, dict) and _is_shallow(text, _DEEPEST_ABOUT) else None


def _is_shallow(value: object, levels: int) -> bool:
    """Say whether no more than ``levels`` containers lie in one another: whoever handles ``value`` recurses."""
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_shallow(each, levels - 1) for each in inner)
