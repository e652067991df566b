"""Addresses of stores, as users write them: with a scheme and a path, or host and port alone."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, urlsplit

from ..api.stores import External
from ..api.types import quoted

_BOUND = "bytes"


@dataclass(frozen=True)
class Address:
    """The parts of an address. ``netloc`` is host and port as they were written.

    ``problem`` says why the text is no address; the other parts are empty then.
    """

    scheme: str = ""
    netloc: str = ""
    host: str = ""
    port: int | None = None
    path: str = ""
    query: str = ""
    fragment: str = ""
    problem: str | None = None


def parse(text: str, *, folder: bool = False) -> Address:
    """The parts of ``text``, which names a host, or where ``folder`` says so a path below / and no host.

    Never raises; its ``problem`` holds nothing of ``text``, which may be a secret.
    """
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
    except ValueError:
        return Address(problem="has brackets or letters that no host name has")
    if folder:
        return _folder(parts)
    try:
        port = parts.port
    except ValueError:
        return Address(problem="has a port that is no number from 1 to 65535")
    host = parts.hostname or ""
    if not host:
        return Address(problem="names no host")
    if port == 0:
        return Address(problem="has port 0, which nothing listens on")
    if ":" in host and ip(host) is None:
        return Address(problem="has brackets around what is no IPv6 address")
    return Address(parts.scheme, parts.netloc, host, port, parts.path, parts.query, parts.fragment)


def _folder(parts: SplitResult) -> Address:
    if parts.netloc:
        return Address(problem="names a host, and this store lies in the engines' pods")
    if not parts.path.startswith("/") or not parts.path.strip("/"):
        return Address(problem="names no path below /")
    return Address(parts.scheme, path=parts.path, query=parts.query, fragment=parts.fragment)


def refusal(text: str, store: External) -> str | None:
    """Why engines end at their start with the store at ``text``; None where they take it.

    Like the ``problem`` of an address it holds nothing of ``text``. ``check`` in the connector's ``store/open.py`` is
    the same rule.
    """
    address = parse(text, folder=store.folder)
    if address.problem is not None:
        return address.problem
    path = "" if store.folder else address.path.strip("/")
    if store.databases and path not in ("", "0"):
        return "names a database, and engines use 0 alone, which is all that a cluster has"
    if path and not store.databases and not store.paths:
        return "has a path, and this store takes none"
    written = parse_qsl(address.query, keep_blank_values=True)
    taken = (*store.parameters, *((_BOUND,) if store.bounded else ()))
    if any(name not in taken for name, _ in written):
        return (
            f"has a parameter other than {' and '.join(taken)}"
            if taken
            else "has a parameter, and this store takes none"
        )
    if not all(re.fullmatch("[0-9]{1,18}", value) and int(value) for name, value in written if name == _BOUND):
        return "has ?bytes= with what is no number of bytes above 0"
    return "has a part behind #, which no store takes" if address.fragment else None


def shown(text: str) -> str:
    """``text`` for messages, quoted: ``***`` for user and password, a port that is no number, query and fragment."""
    masked = re.sub(r"^([A-Za-z0-9+.-]*://)?.*@", r"\1***@", text)
    masked = re.sub(r"([?#;&]).*", r"\1***", masked)
    return quoted(re.sub(r"(?<=[^:/]):(?![0-9]*([/?#;&]|$)|//|[^/]*\])[^/]*", ":***", masked))


def ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that ``host`` is, without a zone, which means nothing in another pod; None for a name."""
    try:
        return ipaddress.ip_address(host) if "%" not in host else None
    except ValueError:
        return None
