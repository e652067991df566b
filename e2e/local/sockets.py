"""TCP sockets of processes, from /proc."""

from __future__ import annotations

import os
import socket
import struct
import threading
from pathlib import Path

LISTEN = "0A"


def listening(session: int) -> set[tuple[str, int]]:
    """Return (address, port) of every listening socket of the processes of a session."""
    inodes = {inode for pid in _session(session) for inode in _inodes(pid)}
    return {(address, port) for address, port, _, _, state, inode in _table() if state == LISTEN and inode in inodes}


class Watch:
    """Notes every remote address to which any TCP socket of this machine is opened, while it is entered."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.samples = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self.seen |= {remote for _, _, remote, _, state, _ in _table() if state != LISTEN}
            self.samples += 1
            if self._stop.wait(0.02):
                return


def _table() -> list[tuple[str, int, str, int, str, str]]:
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            local, remote = _address(fields[1]), _address(fields[2])
            found.append((*local, *remote, fields[3], fields[9]))
    return found


def _address(text: str) -> tuple[str, int]:
    address, port = text.split(":")
    words = struct.pack(f"={len(address) // 8}I", *(int(address[i : i + 8], 16) for i in range(0, len(address), 8)))
    family = socket.AF_INET if len(words) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, words).removeprefix("::ffff:"), int(port, 16)


def _session(leader: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if os.getsid(int(entry)) == leader:
                    found.append(int(entry))
            except ProcessLookupError:
                continue
    return found


def _inodes(pid: int) -> set[str]:
    found = set()
    try:
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except FileNotFoundError:
        pass  # the process or the descriptor is gone since it was listed
    return found
