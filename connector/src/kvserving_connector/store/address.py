"""Addresses of stores and the credentials that go with them."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, parse_qsl, urlsplit

USERNAME = "KVSERVING_STORE_USERNAME"
PASSWORD = "KVSERVING_STORE_PASSWORD"  # noqa: S105 - the name of a variable
PASSWORD_FILE = "KVSERVING_STORE_PASSWORD_FILE"  # noqa: S105
CA_FILE = "KVSERVING_STORE_CA_FILE"
CA = "KVSERVING_STORE_CA"

_NO_SECRETS = f"which every process list shows; set {USERNAME} and {PASSWORD_FILE} instead"

_BOUND = "bytes"


@dataclass(frozen=True)
class Address:
    """Host and port of a server, and whether it speaks TLS."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Form(Protocol):
    """What an address of a kind of store may have: see ``Kind`` in ``open.py``, whose lines are of this form."""

    @property
    def example(self) -> str:
        """An address of the kind, for messages."""

    @property
    def port(self) -> int | None:
        """What an address of a server means that names none."""

    @property
    def folder(self) -> bool:
        """Whether it is a path without a host."""

    @property
    def bounded(self) -> bool:
        """Whether it may bound the store by ``?bytes=``."""

    @property
    def databases(self) -> bool:
        """Whether its path may be the number of a database, of which 0 alone is used."""

    @property
    def paths(self) -> bool:
        """Whether any path may follow the host."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """What may stand behind the ?, beside ``bytes``."""


def check(url: str, form: Form) -> None:
    """Raise ValueError, with the way out, where ``url`` says more or less than an address of ``form``.

    ``refusal`` in the operator's ``plan/addresses.py`` is the same rule.
    """
    parts, written, way_out = split(url, form.example), shown(url), f"write {form.example}"
    if form.folder:
        folder(url, form.example)
    else:
        server(url, form.example, form.port or 0)
        path = parts.path.strip("/")
        if form.databases and path not in ("", "0"):
            raise ValueError(f"urls: {written} names database {parts.path!r}; only database 0 is used, leave it out")
        if path and not form.databases and not form.paths:
            raise ValueError(f"urls: {written} has a path, and this store takes none; {way_out}")
    taken = (*form.parameters, *([_BOUND] if form.bounded else ()))
    if any(name not in taken for name, _ in _parameters(url, form.example)):
        # The name may be all of a secret.
        problem = (
            f"has a parameter other than {' and '.join(taken)}"
            if taken
            else "has a parameter, and this store takes none"
        )
        raise ValueError(f"urls: {written} {problem}; {way_out}")
    if parts.fragment:
        raise ValueError(f"urls: {written} has a part behind #, which no store takes; {way_out}")


def server(url: str, example: str, port: int, *, tls: Collection[str] = ()) -> Address:
    """Return host and port of the address of a server, of a scheme with ``example``; ``port`` where it names none.

    It is spoken to with TLS where its scheme is one of ``tls``. Raises ValueError, with ``example`` as the way out, for
    what names no host or no port; the text names what is wrong and never holds a password.
    """
    parts = split(url, example)
    written, way_out = shown(url), f"write {example}"
    if "@" in url:
        # A password with a / in it ends the host early: what is before the @ is not all that urlsplit takes for it.
        raise ValueError(f"urls: {written} holds a user or a password, {_NO_SECRETS}")
    if " " in url:
        raise ValueError(f"urls: {written} has a space; {way_out}")
    try:
        its_port = parts.port
    except ValueError:
        its_port = 0
    if its_port == 0:
        raise ValueError(f"urls: {written} has a port that is no number from 1 to 65535; {way_out}")
    if not parts.hostname:
        raise ValueError(f"urls: {written} names no host; {way_out}")
    if ":" in parts.hostname and not _is_ip(parts.hostname):
        raise ValueError(f"urls: {written} has brackets around what is no IPv6 address; {way_out}")
    return Address(parts.hostname, port if its_port is None else its_port, parts.scheme in tls)


def _is_ip(host: str) -> bool:
    """Whether ``host`` is an IP address, without a zone, which means nothing in another pod."""
    try:
        return "%" not in host and bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def split(url: str, example: str) -> SplitResult:
    """Return the parts of ``url``. Raises ValueError, with ``example`` as the way out, for what is no address."""
    try:
        return urlsplit(url)
    except ValueError:
        text = f"urls: {shown(url)} has brackets or letters that no host name has; write {example}"
        raise ValueError(text) from None


def shown(url: str) -> str:
    """``url`` for messages, quoted: ``***`` for user and password, a port that is no number, query and fragment."""
    masked = re.sub(r"^([A-Za-z0-9+.-]*://)?.*@", r"\1***@", url, flags=re.DOTALL)
    masked = re.sub(r"([?#;&]).*", r"\1***", masked, flags=re.DOTALL)
    return repr(re.sub(r"(?<=[^:/]):(?!:?[0-9]*([/?#;&]|$)|//|[^/]*\])[^/]*", ":***", masked))


def refuse_secrets(parts: SplitResult) -> None:
    """Raise ValueError, without them, for an address that holds a user or a password."""
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"urls: an address at {parts.hostname!r} holds a user or a password, {_NO_SECRETS}")


def folder(url: str, example: str) -> Path:
    """Return the absolute path of the address of a folder, of a scheme with ``example``. Raises ValueError without."""
    parts = split(url, example)
    if parts.netloc or not parts.path.startswith("/") or not parts.path.strip("/"):
        form = f"{example.partition('://')[0]}:// and an absolute path below /"
        raise ValueError(f"urls: {shown(url)} must be {form}, such as {example}")
    return Path(parts.path)


def _parameters(url: str, example: str) -> list[tuple[str, str]]:
    """Return the names and values behind the ? of an address."""
    return parse_qsl(split(url, example).query, keep_blank_values=True)


def bound(url: str, example: str) -> int | None:
    """Return the number of ``?bytes=5000000`` in an address; None without it. Raises ValueError for what is none."""
    bounds = [value for name, value in _parameters(url, example) if name == _BOUND]
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
