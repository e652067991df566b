"""Whether the router can listen where it was asked to, and otherwise who or what is in the way."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from .addresses import bind_error
from .state import DamagedState, State, services

_FIRST_FREE_PORT = 1024
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - as ``Run.url`` names what listens everywhere
_NEAR = 100
"""Ports above and below the busy one among which a free one is looked for."""


def fault(host: str, port: int, base: Path) -> str | None:
    """Why nothing can listen on ``host:port`` now, with the way out; ``None`` where something can.

    ``base`` is the folder of all services, one of which may have the port.
    """
    error = bind_error(host, port)
    if error is None:
        return None
    at = _shown(host, port)
    if error.errno == errno.EADDRINUSE:
        other = f"--listen {_shown(host, free)}" if (free := _free(host, port)) is not None else "--listen HOST:PORT"
        if (name := _owner(host, port, base)) is not None:
            return f"{at} is busy: your service {name} has it. Choose another one, {other}, or `kvserving down {name}`"
        return (
            f"{at} is busy: another program listens there. Choose another one, {other}, or find the program:"
            f" `ss -ltnp 'sport = :{port}'`"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"{host} is not an address of this machine: `ip -brief address` lists those that are. --listen"
            f" 127.0.0.1:{port} is for clients of this machine alone, --listen 0.0.0.0:{port} for all"
        )
    if error.errno == errno.EACCES and port < _FIRST_FREE_PORT and os.geteuid() != 0:
        return f"{at} is not for this user: ports below {_FIRST_FREE_PORT} need root; try --listen {_shown(host, 8000)}"
    return f"{at} cannot be listened on: {error.strerror}. Choose another one with --listen"


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _free(host: str, port: int) -> int | None:
    """A free port near ``port``, above it where there is one."""
    above = range(port + 1, min(port + _NEAR, 2**16))
    below = range(port - 1, max(port - _NEAR, _FIRST_FREE_PORT), -1)
    return next((free for free in (*above, *below) if bind_error(host, free) is None), None)


def _owner(host: str, port: int, base: Path) -> str | None:
    """The service of this user that runs and has the port; ``None`` where it is no service."""
    for state in _running(base):
        router = urlsplit(state.router.get("url") or "")
        if router.port == port and (router.hostname == _ANY.get(host, host) or host in _ANY):
            return state.name
    return None


def _running(base: Path) -> Iterator[State]:
    for directory in services(base):
        try:
            state = directory.look()
        except (DamagedState, OSError):
            continue  # of such a one nothing is known; `kvserving status` says so
        if state is not None and state.supervised:
            yield state
