"""Requirement files as ``scripts/compile-requirements`` makes them: what is pinned, and who asks for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


class Unpinned(ValueError):
    """A requirement has no version; the message says where, and the way out."""


# Who asks is a distribution, or a file: after an option, or in brackets after the name of its package.
_VIA = re.compile(r"    #(?: via|  ) (?P<by>[^\s-]\S*)$")


@dataclass
class Pinned:
    """One distribution of a requirement file."""

    name: str
    version: str
    conditional: bool
    """Whether only some systems or Pythons get it."""
    asked_by: list[str] = field(default_factory=list)
    """Distributions of the same file that need it."""


def read(file: Path) -> Mapping[str, Pinned]:
    """Return what a file pins, by normal names. Raises ``Unpinned`` for a line that pins nothing."""
    found: dict[str, Pinned] = {}
    last: Pinned | None = None
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if line[:1] not in (" ", "#", ""):
            requirement = Requirement(line.removesuffix("\\").strip())
            pins = [one.version for one in requirement.specifier if one.operator == "=="]
            if len(pins) != 1:
                raise Unpinned(f"{file}:{number}: {line!r} pins no version: make the file by `make requirements`")
            name = canonicalize_name(requirement.name)
            last = found[name] = Pinned(name, pins[0], requirement.marker is not None)
        elif (match := _VIA.match(line)) and last is not None:
            last.asked_by.append(canonicalize_name(match["by"]))
    return found


def needed(pinned: Mapping[str, Pinned], by: Iterable[str]) -> set[str]:
    """Return the names of ``by`` and of all that these need, directly or not."""
    found: set[str] = set()
    left: list[str] = list(by)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += [one.name for one in pinned.values() if name in one.asked_by]
    return found
