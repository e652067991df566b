"""One shell in which the commands of a page follow each other, as a reader types them."""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.documents.marks import Run, replaced
from tests.documents.pages import Block
from tests.documents.shell import Command, commands, unlike

_END_SECONDS = 10
_VARIABLES = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTEST_ADDOPTS", "VIRTUAL_ENV")
"""What a reader's shell does not have: they change what commands do, and come from whoever runs the tests."""


class Failed(AssertionError):
    """A command ended with another status than 0, or printed something else than the page shows."""


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed on both streams."""

    status: int
    printed: str


class Session:
    """A bash in ``folder``, as a context manager that ends what its commands have left in it."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
        self._environment = {**kept, **(environment or {})}
        self._folder = folder

    def __enter__(self) -> Self:
        # Whatever the session starts has the other end: this one is at its end when all are gone.
        self._gone, held = os.pipe()
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-o", "pipefail"],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[held],
            start_new_session=True,
        )
        os.close(held)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            # Of no interest where the shell ended by itself and left nothing in its group.
            with suppress(ProcessLookupError):
                os.killpg(self._bash.pid, number)
            if select.select([self._gone], [], [], _END_SECONDS)[0]:
                break
        os.close(self._gone)
        self._bash.communicate(timeout=_END_SECONDS)

    def run(self, command: str, seconds: float, *, elsewhere: bool = False) -> Done:
        """Run a command without standard input; ``elsewhere`` leaves it running beside the next ones.

        Raises ``Failed`` where it does not end in time, or ends the shell.
        """
        assert self._bash.stdin is not None
        mark = secrets.token_hex(8)
        behind = " >/dev/null 2>&1 &" if elsewhere else ""
        # A group, and no subshell: what it sets stays set. Its end is on a line of its own, after a comment.
        self._bash.stdin.write(f"{{\n{command}\n}} </dev/null{behind}\nprintf '\\n%s %s\\n' {mark} $?\n".encode())
        self._bash.stdin.flush()
        printed = self._until(f"\n{mark} ".encode(), command, seconds)
        text, _, status = printed.rpartition(f"\n{mark} ")
        return Done(int(status), text)

    def follow(self, block: Block, how: Run, page: str, seconds: float) -> None:
        """Run the commands of a block, each for ``seconds`` at most. Raises ``Failed`` with page, line and output."""
        for command in substituted(commands(block.text), how):
            where = f"{page}, the block at line {block.line}: `{command.text}`"
            try:
                done = self.run(command.text, seconds, elsewhere=command.elsewhere)
            except Failed as error:
                raise Failed(f"{where} {error}") from None
            if done.status:
                raise Failed(f"{where} ended with {done.status}:\n{done.printed}")
            if how.output and (line := unlike(command.output, done.printed)) is not None:
                raise Failed(f"{where} did not print {line!r}:\n{done.printed}")

    def _until(self, mark: bytes, command: str, seconds: float) -> str:
        assert self._bash.stdout is not None
        output, read = self._bash.stdout.fileno(), b""
        deadline = time.monotonic() + seconds
        while mark not in read or not read.endswith(b"\n"):
            ready, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(output, 65536) if ready else b""
            if not part:
                what = "ended the shell" if ready else f"did not end within {seconds:g} s"
                raise Failed(f"{what}:\n{read.decode(errors='replace')}")
            read += part
        return read.decode(errors="replace")


def substituted(found: Sequence[Command], how: Run) -> list[Command]:
    """Return the commands with the values of the mark. Raises ``ValueError`` for a name that none of them has."""
    changed, used = [], set[str]()
    for command in found:
        text, names = replaced(command.text, how.values)
        changed.append(Command(text, command.output))
        used |= names
    if unused := set(how.values) - used:
        raise ValueError(f"no command of the block has {', '.join(sorted(unused))}")
    return changed
