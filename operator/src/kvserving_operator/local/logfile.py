"""Log of one pod: a file of bounded size, its last lines, and its last line worth showing."""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from ..api.faults import printable
from ..redaction import redact
from . import runlogs
from .runlogs import older, put_aside

LIMIT = 16 * 2**20
"""Bytes of the current file; one older file of that size is kept."""

_NOTABLE = re.compile(
    r"(Starting to load model|Loading (?:safetensors|weights|model)[^|]*|Model loading took .*|Downloading .*"
    r"|Time spent downloading .*|GPU KV cache size.*|CPU KV cache size.*|Capturing .*|init engine .*"
    r"|Resolved architecture: \S+|Initializing a V1 LLM engine \([^)]*\)"
    r"|Starting vLLM API server.*|Starting server.*|Application startup complete|Warming up .*"
    r"|torch\.compile takes .*)"
)
# The last line of a traceback, bare or behind what vLLM's processes and logs put before it; never the header of one.
_RAISED = re.compile(r"^(?:\([^)]*\) )?(?:ERROR .*?)?(?<![\w.])([\w.]*(?:Error|Exception|Interrupt)(?:: .*|$))")
_ELSEWHERE = re.compile(r"(?i)root cause")
"""An exception that only points to another one, as that of vLLM's API server does to its engine's."""
_LONGEST_NOTE = 100

# A line that says why a program ends, and argparse's own, which ends its output: `prog: error: unrecognized …`.
_FAULT = re.compile(r"^(?:\([^)]*\) )?(?:\S[^:]*: )?error: (.*\S)")
_WRONG_USAGE = re.compile(r"^(?:\([^)]*\) )?\S[^:]*: error: ")
_USAGE = re.compile(r"usage:|\s")
_LONGEST_FAULT = 200
_LOG_LINE, _LOG_FOLLOWS, _WHOLE_LOG = "  | ", "Its last lines:", "The whole log: "


def raised(line: str) -> str:
    """The exception that a line of a log, the last one of a traceback, tells; empty for any other line."""
    match = _RAISED.match(line)
    return match.group(1) if match else ""


def last_raised(lines: Iterable[str]) -> str:
    """The exception that a program whose output these lines are ended with; empty without one.

    One that only points to another counts where there is no other.
    """
    found = [said for line in lines if (said := raised(line))]
    return next((said for said in reversed(found) if not _ELSEWHERE.search(said)), found[-1] if found else "")


def log_end(lines: Sequence[str], path: Path) -> str:
    """The end of what a message says of a failure: the last lines of a log, and where it lies."""
    shown = "\n".join(_LOG_LINE + line for line in lines) or f"{_LOG_LINE}(no output)"
    return f"{_LOG_FOLLOWS}\n{shown}\n{_WHOLE_LOG}{path}"


def has_log_end(message: str) -> bool:
    """Whether what is said of a failure has the end of a log."""
    return any(line.startswith(_LOG_LINE) for line in message.splitlines())


def in_short(message: str) -> list[str]:
    """What is said of a failure, without the ends of logs: its sentences, and the exception where they tell none."""
    lines = message.splitlines() or [""]
    said = [line.removesuffix(f" {_LOG_FOLLOWS}") for line in lines if not line.startswith((_LOG_LINE, _WHOLE_LOG))]
    exception = last_raised(line.removeprefix(_LOG_LINE) for line in lines if line.startswith(_LOG_LINE))
    told = exception in " ".join(said) or shortened(exception) in " ".join(said)
    return [*said, *([] if told else [exception])]


def logs_of(message: str) -> list[str]:
    """The lines of what is said of a failure that tell where logs lie."""
    return [line for line in message.splitlines() if line.startswith(_WHOLE_LOG)]


class LogFile:
    """Takes the output of a process in pieces. A run begins a file of its own.

    What a full disk does not take is left out, and the file says how much: a process whose output nobody reads stops.
    """

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self.path = path
        self._limit = limit
        put_aside(path)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - lives as long as the pod
        self._size = 0
        self._partial = b""
        self._lost = 0
        self._why = ""
        self._lines: deque[str] = deque(maxlen=400)
        self.notable = ""

    def write(self, data: bytes) -> None:
        """Append output; the file is turned over when it has reached its limit."""
        try:
            if self._size + len(data) > self._limit and self._size:
                self._turn_over()
            if self._lost:
                self._append(f"{runlogs.OWN}{self._lost} bytes of output are missing here: {self._why}\n".encode())
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
            self.path.replace(older(self.path))
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
        self.end()
        self.write(f"{runlogs.OWN}{text}\n".encode())

    def tail(self, lines: int) -> list[str]:
        """The last lines, oldest first."""
        return list(self._lines)[-lines:]

    def note_end(self, name: str, reason: str) -> None:
        """Add the line that parts a run of the process that ended from the next one (see ``runlogs.ended_run``)."""
        self.note(runlogs.end_mark(name, reason))

    def begin(self) -> None:
        """A process starts: the last lines, and the one worth showing, are those of this one."""
        self._lines.clear()
        self.notable = ""

    def end(self) -> None:
        """A process ended: what it left of a line is a line."""
        if self._partial:
            self.write(b"\n")

    @property
    def fault(self) -> str:
        """What the last ``error:`` line of this process says, short and without credentials; empty without one."""
        for line in reversed(self._lines):
            if match := _FAULT.match(line):
                return shortened(match.group(1))
        return ""

    @property
    def exception(self) -> str:
        """The exception that this process ended with, as it stands there; empty for one that went on after it."""
        return last_raised(self._lines) if raised(self.notable) else ""

    @property
    def wrong_usage(self) -> bool:
        """Whether the output of this process ends as argparse ends a program whose arguments are wrong."""
        return bool(self._lines) and _WRONG_USAGE.match(self._lines[-1]) is not None

    def drop_usage(self) -> None:
        """Leave argparse's usage, which goes before its error, out of the last lines; the file keeps it."""
        error = self._lines.pop()
        while self._lines and _USAGE.match(self._lines[-1]):
            self._lines.pop()
        self._lines.append(error)

    def close(self) -> None:
        """Close the file; what was written stays."""
        self._file.close()

    def _take(self, line: str) -> None:
        self._lines.append(line)
        if match := _RAISED.match(line) or _NOTABLE.search(line):
            self.notable = shortened(match.group(1), _LONGEST_NOTE)


def shortened(text: str, most: int = _LONGEST_FAULT) -> str:
    """``text`` in one line without credentials, cut between words where it is longer than ``most``."""
    said = printable(redact(text))
    if len(said) <= most:
        return said
    head = said[: most - 1]
    whole = head if said[most - 1].isspace() else head.rpartition(" ")[0] or head
    return whole.rstrip() + "…"
