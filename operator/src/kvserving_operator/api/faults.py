"""What is wrong with an object, in words for the person who wrote it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .v1alpha1 import KVServing


def printable(text: str) -> str:
    """Return ``text`` with what a terminal would obey or not show (control characters, line ends) as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)


@dataclass(frozen=True)
class Fault:
    """One fault: the field's path, what is wrong and the way out, and the value where it may be shown.

    Its text is one line without control characters, whatever path and message hold.
    """

    path: str
    message: str
    value: str | None = None

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.message}" if self.path else self.message)


class InvalidSpec(Exception):
    """An object that must not be applied.

    ``faults`` holds every fault that was found, at least one. ``serving`` is the object
    where its fields could be read all the same, so that further checks can add theirs.
    """

    def __init__(self, faults: Iterable[Fault], serving: KVServing | None = None) -> None:
        self.faults: tuple[Fault, ...] = tuple(faults)
        self.serving = serving
        super().__init__("\n".join(str(fault) for fault in self.faults))
