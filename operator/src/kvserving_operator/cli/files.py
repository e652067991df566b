"""Files that commands are given: a path, or ``-`` for standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ..api import load
from ..api.faults import Fault
from ..api.v1alpha1 import KVServing
from ..local.errors import LocalError
from .names import is_file

if TYPE_CHECKING:
    from ..plan.types import Notice


class InvalidFile(LocalError):
    """A file with faults; the message has a line for each."""

    def __init__(self, found: tuple[str, ...]) -> None:
        super().__init__("\n".join(f"error: {line}" for line in found).removeprefix("error: "))


def read(file: str) -> KVServing:
    """The object in ``file``, unknown fields refused; raises ``InvalidFile`` with every fault."""
    return read_with_notices(file)[0]


def read_with_notices(file: str) -> tuple[KVServing, tuple[Notice, ...]]:
    """As ``read``, with what is to be known of the file itself, which the object does not show."""
    from ..plan.notices import of_empty

    reading = inspect(file)
    if reading.faults or reading.serving is None:
        raise InvalidFile(lines(file, reading.faults))
    return reading.serving, of_empty(reading.empty)


def lines(file: str, faults: Iterable[Fault]) -> tuple[str, ...]:
    """One line per fault: the file, the field where there is one, and what is wrong."""
    name = shown(file)
    return tuple(
        str(fault) if not fault.path and fault.message.startswith(name) else f"{name}: {fault}" for fault in faults
    )


def inspect(file: str) -> load.Reading:
    """Object and faults of ``file``; ``file:`` URIs are relative to its folder, or to the current one for ``-``."""
    if file == "-":
        return _standard_input()
    reading = load.inspect_file(Path(file), strict=True)
    if Path(file).is_dir():
        return load.Reading(None, (Fault("", f"{file} is a folder: name the files in it, such as {_inside(file)}"),))
    if not is_file(file) and not Path(file).exists():
        hint = (
            f"the command takes the file of an object, such as {file}.yaml; `kvserving status {file}` shows the service"
        )
        return load.Reading(
            None, tuple(replace(f, message=f"{f.message}: {hint} of that name") for f in reading.faults)
        )
    return reading


def _inside(folder: str) -> str:
    """A file of that folder that may hold an object, or how such files are named."""
    found = sorted(path for pattern in ("*.yaml", "*.yml") for path in Path(folder).glob(pattern))
    return str(found[0] if found else Path(folder) / "NAME.yaml")


def _standard_input() -> load.Reading:
    # None where the process was started without one, whatever the annotation says.
    stream: IO[bytes] | None = getattr(sys.stdin, "buffer", None)
    way_out = "pipe the object into the command, or name its file"
    if stream is None or stream.closed:
        return load.Reading(None, (Fault("", f"cannot be read, it is closed: {way_out}"),))
    try:
        return load.inspect_stream(stream, shown("-"), strict=True, base_dir=Path.cwd())
    except OSError as error:
        return load.Reading(None, (Fault("", f"cannot be read ({error.strerror or error}): {way_out}"),))


def shown(file: str) -> str:
    """How messages name the file."""
    return "standard input" if file == "-" else file
