"""A result as a Markdown table that names its command and its hardware."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


class NotMeasured(Exception):
    """A benchmark lacks something on this machine; the text says what, and how to come by it."""


@dataclass(frozen=True)
class Table:
    """Rows of one benchmark; ``note`` says what is compared with what."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self, command: str) -> str:
        """Render with the command that made it and the machine it ran on."""
        lines = [f"# {self.title}", "", self.note, ""]
        lines += ["| " + " | ".join(row) + " |" for row in (self.header, ("---",) * len(self.header), *self.rows)]
        return "\n".join([*lines, "", f"Made by `{command}` on {hardware()}.", ""])


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table, none without rows."""
    body = ["| " + " | ".join(row) + " |" for row in rows]
    return ["", "| " + " | ".join(header) + " |", "|" + " --- |" * len(header), *body] if body else []


def hardware() -> str:
    """Describe processor, cores, memory and Python of this machine."""
    models = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    model = models[0] if models else platform.machine()
    return f"{model}, {cores} cores, {gib:.0f} GiB, Python {platform.python_version()}"
