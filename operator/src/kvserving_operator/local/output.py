"""Standard output and error of a process that goes on when nobody reads them any more."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


@contextmanager
def lasting() -> Iterator[None]:
    """Let no write to standard output or error fail for the time of this.

    What a reader that went away, a closed terminal or a full disk does not take is lost, also what is still to be
    written when the process ends. A stream that was closed from the start takes everything and keeps nothing.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_lasting(stream) for stream in before)
    made = sys.stdout, sys.stderr
    try:
        yield
    finally:
        for stream in made:
            stream.flush()
        sys.stdout, sys.stderr = before


def _lasting(stream: TextIO | None) -> TextIO:
    if stream is None:
        return open(os.devnull, "w")
    if not isinstance(stream, io.TextIOWrapper) or isinstance(stream.buffer, io.BytesIO):
        return stream
    stream.flush()
    raw = _Lasting(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        raw if isinstance(stream.buffer, io.RawIOBase) else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Lasting(io.FileIO):
    """A descriptor that takes all that is written to it."""

    def write(self, data: ReadableBuffer, /) -> int:
        size = memoryview(data).nbytes
        try:
            written = super().write(data)
        except (BrokenPipeError, ConnectionResetError):
            # Nobody will read it again: also what other streams still hold for this descriptor goes nowhere.
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return size
        except OSError:
            return size
        return size if written is None else written
