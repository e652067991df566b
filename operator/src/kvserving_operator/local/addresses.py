"""Loopback addresses: each pod has one of its own, as it has an IP of its own in a cluster."""

from __future__ import annotations

import hashlib
import ipaddress
import socket
from collections.abc import Iterable, Iterator, Sequence

from .errors import EnvironmentFault


def allocate(service: str, count: int, ports: Sequence[int], taken: Iterable[str] = ()) -> list[str]:
    """Choose ``count`` free addresses of 127.0.0.0/8 for a service.

    ``ports`` are those that every pod binds; an address on which one is busy is passed over,
    as are those in ``taken``. The search starts at a place derived from the name, so that a
    service tends to keep its addresses. Raises ``EnvironmentFault`` when a port is busy on
    all addresses, which is what a program that listens on 0.0.0.0 does.
    """
    used = set(taken)
    chosen: list[str] = []
    for tried, address in enumerate(_candidates(service)):
        if len(chosen) == count:
            return chosen
        if address in used:
            continue
        busy = [port for port in ports if not can_bind(address, port)]
        if not busy:
            chosen.append(address)
        elif tried >= 64 + count and not chosen:
            raise EnvironmentFault(
                f"port {busy[0]} is busy on every loopback address: a program listens on it at 0.0.0.0. Find it with"
                f" `ss -ltnp 'sport = :{busy[0]}'` and stop it, or give the engines another port:"
                ' spec.engine.args: ["--port=18000"]'
            )
    raise EnvironmentFault(f"no {count} free loopback addresses were found for {service}")


def can_bind(host: str, port: int) -> bool:
    """Whether a server could listen on ``host:port`` now."""
    return bind_error(host, port) is None


def bind_error(host: str, port: int) -> OSError | None:
    """Why no server could listen on ``host:port`` now; ``None`` where one could."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As servers do: without it, connections that were just closed count as busy.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as error:
        return error
    return None


def split_host_port(text: str) -> tuple[str, int]:
    """Split ``HOST:PORT``, ``[IPv6]:PORT``, ``:PORT`` or ``PORT`` (127.0.0.1); raise ``ValueError`` otherwise.

    HOST is an address of this machine or ``localhost``, which is 127.0.0.1.
    """
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    address = {"": "127.0.0.1", "localhost": "127.0.0.1"}.get(bare, bare) if not bracketed else bare
    wrong = f"{text!r} is not HOST:PORT, such as 127.0.0.1:8000"
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{wrong}; PORT is a number from 1 to 65535")
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        raise ValueError(f"{wrong}; HOST is an IP address of this machine or localhost") from None
    if bracketed != (parsed.version == 6):
        raise ValueError(f"{wrong}; an IPv6 address stands in brackets, as [::1]:8000")
    return address, int(port)


def _candidates(service: str) -> Iterator[str]:
    """Addresses 127.64.0.1 to 127.127.255.254, from a start derived from the name, in steps of one."""
    space = 64 * 256 * 254
    start = int.from_bytes(hashlib.sha256(service.encode()).digest()[:4], "big") % space
    for step in range(4096):
        second, rest = divmod((start + step) % space, 256 * 254)
        third, fourth = divmod(rest, 254)
        yield f"127.{64 + second}.{third}.{fourth + 1}"
