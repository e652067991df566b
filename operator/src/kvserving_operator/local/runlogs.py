"""Which log files are of the run that goes on: what an earlier one wrote lies beside them, under another name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def older(log: Path) -> Path:
    """The file that ``log`` goes on from since it reached its limit: of the same run."""
    return log.with_name(log.name + ".1")


def earlier(log: Path) -> Path:
    """The last file of the run before."""
    return log.with_name(log.name + ".earlier")


OWN = "[kvserving] "
"""What a line of the executor itself begins with."""
_ENDED = re.compile(re.escape(OWN) + r"\S+ has ended: ")


def end_mark(name: str, reason: str) -> str:
    """What the log of a pod says where a process of it has ended and the next one follows."""
    return f"{name} has ended: {reason}"


def ended_run(lines: Sequence[str]) -> Sequence[str]:
    """Those of the lines of a log that the process wrote which ended last, with the mark of its end; none without."""
    marks = [number for number, line in enumerate(lines) if _ENDED.match(line)]
    if not marks:
        return ()
    return lines[marks[-2] + 1 if len(marks) > 1 else 0 : marks[-1] + 1]


def put_aside(log: Path) -> None:
    """What an earlier run wrote is no log any more: its last file stays as ``earlier``."""
    with suppress(FileNotFoundError):
        log.replace(earlier(log))
    older(log).unlink(missing_ok=True)


def begin(folder: Path) -> None:
    """A run begins: what lies in the folder of a service's logs is of an earlier one."""
    for log in folder.glob("*.log"):
        put_aside(log)
