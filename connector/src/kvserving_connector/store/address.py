"""Addresses of stores and the credentials that go with them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, urlsplit

USERNAME = "KVSERVING_STORE_USERNAME"
PASSWORD = "KVSERVING_STORE_PASSWORD"  # noqa: S105 - the name of a variable
PASSWORD_FILE = "KVSERVING_STORE_PASSWORD_FILE"  # noqa: S105
CA_FILE = "KVSERVING_STORE_CA_FILE"
CA = "KVSERVING_STORE_CA"

DEFAULT_PORT = 6379
_PLAIN = ("redis", "valkey")
_TLS = ("rediss", "valkeys")
SERVER_SCHEMES = (*_PLAIN, *_TLS)
_SERVER_EXAMPLE = "redis://host:6379"


@dataclass(frozen=True)
class Address:
    """Host and port of a server, and whether it speaks TLS."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def server_address(url: str) -> Address:
    """Return the address of ``redis://``, ``valkey://``, ``rediss://`` or ``valkeys://`` (the latter two with TLS).

    Raises ValueError for anything else, for a password in the address and for a database number, which a cluster has
    not; the text names what is wrong and never holds the password.
    """
    parts = split(url, _SERVER_EXAMPLE)
    refuse_secrets(parts)
    written, way_out = shown(url), f"write {_SERVER_EXAMPLE}"
    if parts.scheme not in SERVER_SCHEMES:
        raise ValueError(f"urls: {written} has none of the schemes {', '.join(SERVER_SCHEMES)}; {way_out}")
    port = _port(parts)
    if port == 0:
        raise ValueError(f"urls: {written} has a port that is no number from 1 to 65535; {way_out}")
    if not parts.hostname:
        raise ValueError(f"urls: {written} names no host; {way_out}")
    if parts.path.strip("/") not in ("", "0"):
        raise ValueError(f"urls: {written} names database {parts.path!r}; only database 0 is used, leave it out")
    return Address(parts.hostname, DEFAULT_PORT if port is None else port, parts.scheme in _TLS)


def split(url: str, example: str) -> SplitResult:
    """Return the parts of ``url``. Raises ValueError, with ``example`` as the way out, for what is no address."""
    try:
        return urlsplit(url)
    except ValueError:
        text = f"urls: {shown(url)} has brackets or letters that no host name has; write {example}"
        raise ValueError(text) from None


def _port(parts: SplitResult) -> int | None:
    """The port; None where none is written, and 0 for what is none."""
    try:
        return parts.port
    except ValueError:
        return 0


def shown(url: str) -> str:
    """``url`` for messages, quoted: ``***`` for user and password, a port that is no number, query and fragment."""
    masked = re.sub(r"^([A-Za-z0-9+.-]*://)?.*@", r"\1***@", url, flags=re.DOTALL)
    masked = re.sub(r"([?#;&]).*", r"\1***", masked, flags=re.DOTALL)
    return repr(re.sub(r"(?<=[^:/]):(?!:?[0-9]*([/?#;&]|$)|//|[^/]*\])[^/]*", ":***", masked))


def refuse_secrets(parts: SplitResult) -> None:
    """Raise ValueError, without them, for an address that holds a user or a password."""
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            f"urls: an address at {parts.hostname!r} holds a user or a password, which every process list shows; "
            f"set {USERNAME} and {PASSWORD_FILE} instead"
        )


def folder(url: str, example: str) -> Path:
    """Return the absolute path of the address of a folder, of a scheme with ``example``. Raises ValueError without."""
    parts = split(url, example)
    if parts.netloc or not parts.path.startswith("/") or not parts.path.strip("/"):
        form = f"{example.partition('://')[0]}:// and an absolute path below /"
        raise ValueError(f"urls: {shown(url)} must be {form}, such as {example}")
    return Path(parts.path)


def bound(url: str, example: str) -> int | None:
    """Return the number of ``?bytes=5000000`` in an address; None without it. Raises ValueError for what is none."""
    queries = parse_qsl(split(url, example).query, keep_blank_values=True)
    bounds = [value for name, value in queries if name == "bytes"]
    if not all(re.fullmatch("[0-9]{1,18}", each) and int(each) for each in bounds):
        way_out = f"write {example}, or with ?bytes=5000000"
        raise ValueError(f"urls: {shown(url)} has ?bytes= with what is no number of bytes above 0; {way_out}")
    return int(bounds[-1]) if bounds else None


@dataclass(frozen=True)
class Credentials:
    """User, password and certificate authority of a store.

    A password file is read at every new connection, so that a rotated password is taken up. ``ca`` is a certificate in
    PEM, ``ca_file`` the path of one; with either, the system's authorities are not trusted.
    """

    username: str = ""
    password_file: str = ""
    fixed_password: str = field(default="", repr=False)
    ca_file: str = ""
    ca: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Credentials:
        """Read ``KVSERVING_STORE_*``; the file wins over the variable with the password itself."""
        source = os.environ if environment is None else environment
        return cls(*(source.get(name, "") for name in (USERNAME, PASSWORD_FILE, PASSWORD, CA_FILE, CA)))

    def password(self) -> str:
        """Return the password without a line end, which a Secret made from a file has; empty when there is none.

        Raises OSError and UnicodeDecodeError.
        """
        text = Path(self.password_file).read_text(encoding="utf-8") if self.password_file else self.fixed_password
        return text.rstrip("\r\n")
