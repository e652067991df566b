"""Which log files are of the run that goes on: what an earlier one wrote lies beside them, under another name."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def older(log: Path) -> Path:
    """The file that ``log`` goes on from since it reached its limit: of the same run."""
    return log.with_name(log.name + ".1")


def earlier(log: Path) -> Path:
    """The last file of the run before."""
    return log.with_name(log.name + ".earlier")


def put_aside(log: Path) -> None:
    """What an earlier run wrote is no log any more: its last file stays as ``earlier``."""
    with suppress(FileNotFoundError):
        log.replace(earlier(log))
    older(log).unlink(missing_ok=True)


def begin(folder: Path) -> None:
    """A run begins: what lies in the folder of a service's logs is of an earlier one."""
    for log in folder.glob("*.log"):
        put_aside(log)
