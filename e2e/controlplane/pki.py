"""Certificates of one control plane, made by ``openssl`` with elliptic-curve keys (about 10 ms each)."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_SERVER_NAMES = (
    "IP:127.0.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
)
_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


@dataclass(frozen=True)
class Credentials:
    """Who a client is: a bearer token, a client certificate, or both. Neither is shown by ``repr``."""

    name: str
    token: str | None = field(default=None, repr=False)
    cert_file: Path | None = None
    key_file: Path | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Authority:
    """A certificate authority that lives in ``folder``."""

    folder: Path

    @classmethod
    def create(cls, folder: Path, address: str = "127.0.0.1") -> Authority:
        """Make ``folder`` (0700) and in it the authority, a serving certificate, for ``address`` too, and the key pair
        of service accounts (``sa.key``, ``sa.pub``)."""
        folder.mkdir(mode=0o700, parents=True)
        authority = cls(folder)
        _openssl(
            *("req", "-x509", *_KEY, "-days", "30", "-subj", "/CN=kvserving-test-ca"),
            # Python 3.13 takes no authority that does not say so.
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
            *("-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.crt")),
        )
        names = f"subjectAltName={_SERVER_NAMES},IP:{address}"
        authority._issue("server", "/CN=kube-apiserver", names, "serverAuth")
        _openssl(
            "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", str(folder / "sa.key")
        )
        _openssl("pkey", "-in", str(folder / "sa.key"), "-pubout", "-out", str(folder / "sa.pub"))
        return authority

    @property
    def ca_file(self) -> Path:
        """The authority's certificate."""
        return self.folder / "ca.crt"

    @property
    def server(self) -> tuple[Path, Path]:
        """Certificate and key for servers on 127.0.0.1 and the address: the apiserver and proxies before it."""
        return self.folder / "server.crt", self.folder / "server.key"

    def client(self, name: str, groups: Sequence[str] = ()) -> Credentials:
        """Return a client certificate for user ``name`` in ``groups``."""
        subject = "".join(f"/{key}={_escaped(value)}" for key, value in [*(("O", g) for g in groups), ("CN", name)])
        number = len(list(self.folder.glob("client-*.crt")))
        cert, key = self._issue(f"client-{number}", subject, None, "clientAuth")
        return Credentials(name, cert_file=cert, key_file=key)

    def _issue(self, file: str, subject: str, names: str | None, usage: str) -> tuple[Path, Path]:
        cert, key = self.folder / f"{file}.crt", self.folder / f"{file}.key"
        _openssl(
            *("req", "-x509", *_KEY, "-days", "30", "-subj", subject),
            *("-CA", str(self.ca_file), "-CAkey", str(self.folder / "ca.key")),
            *("-addext", f"extendedKeyUsage={usage}", "-addext", "basicConstraints=critical,CA:FALSE"),
            *(("-addext", names) if names else ()),
            *("-keyout", str(key), "-out", str(cert)),
        )
        return cert, key


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("/", "\\/").replace("+", "\\+")


def _openssl(*args: str) -> None:
    done = subprocess.run(["openssl", *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"openssl {args[0]} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
