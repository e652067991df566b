"""Log of one pod: a file of bounded size, its last lines, and its last line worth showing."""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from contextlib import suppress
from pathlib import Path

LIMIT = 16 * 2**20
"""Bytes of the current file; one older file of that size is kept."""

_NOTABLE = re.compile(
    r"(Starting to load model|Loading (?:safetensors|weights|model)[^|]*|Model loading took .*|Downloading .*"
    r"|Time spent downloading .*|GPU KV cache size.*|CPU KV cache size.*|Capturing .*|init engine .*"
    r"|Starting vLLM API server.*|Starting server.*|Application startup complete|Warming up .*"
    r"|torch\.compile takes .*"
    r"|Traceback \(most recent call last\)|^(?:\([^)]*\) )?(?:ERROR .*)?\b\w*(?:Error|Exception): .*)"
)


class LogFile:
    """Takes the output of a process in pieces. A run begins a file of its own.

    What a full disk does not take is left out, and the file says how much: a process whose output nobody reads stops.
    """

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self.path = path
        self._limit = limit
        if path.exists():
            path.replace(self._older)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - lives as long as the pod
        self._size = 0
        self._partial = b""
        self._lost = 0
        self._why = ""
        self._lines: deque[str] = deque(maxlen=200)
        self.notable = ""

    @property
    def _older(self) -> Path:
        return self.path.with_name(self.path.name + ".1")

    def write(self, data: bytes) -> None:
        """Append output; the file is turned over when it has reached its limit."""
        try:
            if self._size + len(data) > self._limit and self._size:
                self._turn_over()
            if self._lost:
                self._append(f"[kvserving] {self._lost} bytes of output are missing here: {self._why}\n".encode())
                self._lost = 0
            self._append(data)
        except OSError as error:
            self._lost += len(data)
            self._why = error.strerror or str(error)
        *whole, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[-4096:]
        for line in whole:
            self._take(line.decode(errors="replace").rstrip("\r"))

    def _turn_over(self) -> None:
        with suppress(FileNotFoundError):
            self.path.replace(self._older)
        fresh = open(self.path, "ab", buffering=0)  # noqa: SIM115
        self._file.close()
        self._file = fresh
        self._size = 0

    def _append(self, data: bytes) -> None:
        written = self._file.write(data) or 0
        self._size += written
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def note(self, text: str) -> None:
        """Add a line of the executor itself."""
        self.write(f"[kvserving] {text}\n".encode())

    def tail(self, lines: int) -> list[str]:
        """The last lines, oldest first."""
        return list(self._lines)[-lines:]

    def close(self) -> None:
        """Close the file; what was written stays."""
        self._file.close()

    def _take(self, line: str) -> None:
        self._lines.append(line)
        if match := _NOTABLE.search(line):
            self.notable = match.group(1)[:100]
